"""The pure rules of retryapp: what may be said about a record without touching the world.

No module in here does I/O, reads a clock, draws a random number or writes a log line: the time and the random number
are arguments. So the same rules run in a Faust worker, in a Spark task and in a simulator that lives through a week in
milliseconds.

Import from the modules (``from retryapp.core.policy import RetryPolicy``): this package itself loads nothing.
"""

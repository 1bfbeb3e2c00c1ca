"""The pure rules of retryapp: no I/O, clock, randomness or logging; time and random numbers are arguments.

Import from the modules (``from retryapp.core.policy import RetryPolicy``): the package itself loads nothing.
"""

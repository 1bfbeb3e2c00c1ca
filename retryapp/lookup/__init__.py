"""What people are shown of records and groups, below the pages and the commands that show it.

* :mod:`instants`, :mod:`payloads`: times, keys and values as text.
* :mod:`jobs`: what a job would do, and how far it is.
* :mod:`outcomes`: what became of a command.
* :mod:`reading`: what topics have from an instant on.
* :mod:`records`: waiting and dead records as plain facts, the same in HTML, in a terminal and in JSON.
"""

"""The pages of a worker, under ``/retries/``: what waits, what is dead, and why. They only show.

``/retries/``
    Handlers, their policy and totals.
``/retries/{main}/``
    One handler: topics, policy, partitions, and how much becomes due within a minute, an hour and a day.
``/retries/{main}/partitions``
    Each partition: owner, lane, and its lag without what is not yet due.
``/retries/{main}/pending``
    Waiting records by due time.
``/retries/{main}/pending/{partition}/{offset}``
    One of them (offset in the main topic) with key, value and headers.
``/retries/{main}/dead``
    Dead letters, newest first.
``/retries/{main}/dead/{partition}/{offset}``
    One of them (offset on the dead-letter topic) with key, value and headers, read from the topic when asked for.
``/retries/{main}/find?id={failure id}``
    Sends the reader to the page of a failure id.
``/retries/health``, ``/retries/ready``, ``/retries/metrics``
    200 while pages are served; 200 or 503 from the worker's state; Prometheus metrics.

``format=json`` on a page gives the same facts as JSON. Lists take ``limit`` (1 to 500, 50 unless given), ``partition``
and, for dead letters, ``reason``; ``next`` in the answer is the address of the next page. ``refresh=5`` loads a page
again every 5 s.

A question for a partition of another worker is answered with 307 to that worker, or with 409 when its owner is not
known here. Errors have one shape, ``{"error": {"code", "message", "hint"}}``; for a browser, a page with these words.

The pages have no login: keep Faust's ``web_bind`` on loopback, or put a proxy with a login in front of it.
"""

from retryapp.web.views import register

__all__ = ["register"]

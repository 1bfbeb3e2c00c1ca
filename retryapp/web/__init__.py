"""The pages of a worker, under ``/retries/``: what waits, what is dead, and why; and what puts it right.

`views.ROUTES` lists the addresses. ``format=json`` on a page gives the same facts as JSON. Lists take ``limit`` (1 to
500, 50 unless given), ``partition`` and, for dead letters, ``reason``; ``next`` in the answer is the address of the
next page. ``refresh=5`` loads a page again every 5 s.

A question for a partition of another worker is answered with 307 to that worker, or with 409 when its owner is not
known here. Errors have one shape, ``{"error": {"code", "message", "hint"}}``; for a browser, a page with these words.

Each address needs a role (`access`), and what a role may not see is left out (`hiding`).
"""

from retryapp.web.views import register

__all__ = ["register"]

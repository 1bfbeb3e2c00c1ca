"""Puts the pages on a Faust app."""

from __future__ import annotations

from typing import TYPE_CHECKING

from faust import web

from retryapp.ports import Clock, WorkerView
from retryapp.web.answers import PREFIX, Answers
from retryapp.web.views import ROUTES

if TYPE_CHECKING:
    import faust

BLUEPRINT: str = "retryapp"
"""Name of our blueprint: the first part of each view's name."""


def register(app: faust.App, view: WorkerView, *, clock: Clock) -> web.Blueprint:
    """Add the pages to an app.

    Call it once an app, from ``app.on_after_configured`` or later, but before its web server starts. Faust serves the
    pages from before the consumer starts until the end, so ``view`` must answer from the first moment (``ready()``
    False, every partition closed).

    Args:
        app: whose web server gets the pages.
        view: what this worker knows. Asked on the web server's event loop: the worker's, unless ``web_in_thread``.
        clock: wall time, for "in 5m".

    Returns:
        The blueprint that was added.

    Raises:
        RuntimeError: the app's web server has taken its pages already.
    """
    answers = Answers(view, clock)
    blueprint = web.Blueprint(BLUEPRINT)
    for path, page in ROUTES:
        bound = type(
            page.__name__, (page,), {"answers": answers, "__doc__": page.__doc__, "__module__": page.__module__}
        )
        blueprint.route(PREFIX + path, name=f"{page.__name__}{path}")(bound)
    app.web.blueprints.add("", blueprint)
    return blueprint

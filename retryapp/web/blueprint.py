"""Puts the pages on a Faust app."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from faust import web

from retryapp.ports import Clock, WorkerView
from retryapp.web.answers import PREFIX, Answers
from retryapp.web.views import ROUTES

if TYPE_CHECKING:
    import faust
    from faust.types.web import Web

BLUEPRINT: Final = "retryapp"
"""Name of our blueprint: the first part of each view's name."""


def register(app: faust.App, view: WorkerView, *, clock: Clock) -> None:
    """Add the pages to an app.

    Call it once an app, at any time before its web server starts, before or after the app is configured. Faust serves
    pages from before the consumer starts until the end, so ``view`` must answer from the first moment (``ready()``
    False, every partition closed).

    The routes are added in ``App.on_webserver_init``, Faust's own hook, and not by ``app.web.blueprints.add`` in
    ``on_after_configured``: where ``app.web`` is what first asks for the settings (as ``@app.page`` does), Faust makes
    a second web server there and throws away the one that got the blueprint.

    Args:
        app: whose web server gets the pages.
        view: what this worker knows. Asked on the web server's event loop: the worker's, unless ``web_in_thread``.
        clock: wall time, for "in 5m".

    Raises:
        RuntimeError: the app's web server has its pages already.
    """
    if "web" in vars(app) and app.web.blueprints.applied:
        raise RuntimeError("the web server of this app has started: register the pages before")
    blueprint = _blueprint(Answers(view, clock))
    before = app.on_webserver_init
    added = False

    def on_webserver_init(server: Web) -> None:
        nonlocal added
        before(server)
        if not added:  # a worker calls this twice
            added = True
            blueprint.register(app)

    app.on_webserver_init = on_webserver_init  # type: ignore[assignment,method-assign]  # a hook to be overridden


def _blueprint(answers: Answers) -> web.Blueprint:
    """Return all routes, each with a view class of its own: Faust writes name and path into the class."""
    blueprint = web.Blueprint(BLUEPRINT)
    for path, page in ROUTES:
        names = {"answers": answers, "__doc__": page.__doc__, "__module__": page.__module__}
        blueprint.route(PREFIX + path, name=f"{page.__name__}{path}")(type(page.__name__, (page,), names))
    return blueprint

"""Finding the user's application: ``-A module[:app]``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retryapp.cli.console import Given
from retryapp.core.errors import ConfigurationError, NoHandlersError, RetryAppError, shown

if TYPE_CHECKING:
    from retryapp.retries import Retries

DEFAULT_ATTRIBUTE = "app"


class AppNotFoundError(ConfigurationError):
    """The module or attribute of ``-A`` does not exist. Operator action: correct it, or run where the module is."""

    def __init__(self, spec: str, problem: str, remedy: str = "") -> None:
        self.spec = spec
        self.problem = problem
        self.remedy = remedy or (
            "Give module[:app], as 'billing' or 'shop.billing:app', and run where it can be imported"
        )
        super().__init__(f"-A {spec}: {problem}. {self.remedy}")


class NoRetriesError(ConfigurationError):
    """No `Retries` extends the app. Operator action: correct the name, or the module."""


class AppImportError(ConfigurationError):
    """The module of ``-A`` raised an exception, or ended, when it was imported. Operator action: correct the module."""


def load_application(spec: str) -> Retries:
    """Import the user's module and return the ``Retries`` of its Faust app; `spec`: ``module[:attribute]``.

    Raises:
        AppNotFoundError: no such module or attribute.
        AppImportError: the module raised an exception.
        NoRetriesError: no ``Retries`` extends that app.
    """
    Given.now().app_spec = spec
    module, _, attribute = spec.partition(":")
    if os.sep in module:
        raise AppNotFoundError(spec, "that is a path, and a module is needed", _in_place_of_path(spec))
    if not module or module.startswith("."):  # Python would take it for a relative import
        raise AppNotFoundError(spec, "no module is named")
    app: Any = (imported := _import(spec, module))
    for name in (attribute or DEFAULT_ATTRIBUTE).split("."):
        if not hasattr(app, name):
            apps = [at for at, each in vars(imported).items() if "_retryapp_retries" in getattr(each, "__dict__", ())]
            remedy = f"Give {' or '.join(f'{module}:{at}' for at in apps)}" if apps else ""
            raise AppNotFoundError(spec, f"{module} has no {attribute or DEFAULT_ATTRIBUTE!r}", remedy)
        app = getattr(app, name)
    faust, retries = import_module("faust"), import_module("retryapp.retries")  # loads Faust, as the user's module has
    found = getattr(app, "_retryapp_retries", None)
    if not isinstance(found, retries.Retries):
        what = f"app {app.conf.id!r}" if isinstance(app, faust.App) else f"{shown(app)} is no Faust app and"
        raise NoRetriesError(
            f"{what} has no Retries: write `retries = Retries(app)` below `app = faust.App(...)`, and declare handlers "
            f"with @retries.handler(topic, policy=...)"
        )
    application: Retries = found
    if found.app.conf.autodiscover:
        prepare = import_module("faust.cli.base").prepare_app  # as a worker does: it may find handlers
        _calling(spec, "autodiscover", partial(prepare, application.app, spec))
    return application


def load_handlers(spec: str) -> Retries:
    """Return the application of a command; what its module prints goes to stderr, for stdout has the result alone.

    Raises:
        NoHandlersError: it has no handlers.
    """
    with redirect_stdout(sys.stderr):
        application = load_application(spec)
    if not application.topologies:
        raise NoHandlersError(spec)
    return application


def _here(spec: str) -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError as error:  # a deploy has replaced it
        raise AppNotFoundError(spec, "the current folder was deleted") from error


def _in_place_of_path(spec: str) -> str:
    """Return what to give for the path of a file or folder: the module, and where to run it if that is not here."""
    path, _, attribute = spec.partition(":")
    here = _here(spec)
    target = Path(os.path.normpath(here / path.removesuffix(".py")))
    is_here = target != here and target.is_relative_to(here)
    name = ".".join(target.relative_to(here).parts) if is_here else target.name
    remedy = f"Give {shlex.quote(f'{name}:{attribute}' if attribute else name)} in its place"
    return remedy if is_here else f"{remedy}, and run it in {target.parent}"


def _import(spec: str, name: str) -> Any:
    here = str(_here(spec))
    if here not in sys.path:
        sys.path.insert(0, here)  # as `faust -A` and `python -m` do
    return _calling(spec, name, partial(import_module, name))


def _calling(spec: str, name: str, code: Callable[[], Any]) -> Any:
    """Run the user's code, and name what it raises."""
    try:
        return code()
    except RetryAppError as error:  # a policy or a handler of the module is wrong, and says so itself
        error.add_note(_worker().user_line(error))
        raise
    except (Exception, SystemExit) as error:  # the user's code raises anything, or calls sys.exit
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            if name.endswith(".py") and error.name != name.partition(".")[0]:
                problem = f"no module {name!r}: leave out '.py'"
                raise AppNotFoundError(spec, problem, _in_place_of_path(spec)) from error
            raise AppNotFoundError(spec, f"no module {error.name!r}") from error
        line = _worker().user_line(error)
        where = f" ({line})" if line else ""
        raise AppImportError(f"-A {spec}: {name} raised {type(error).__name__}: {error}{where}") from error


def _worker() -> Any:
    return import_module("retryapp.runtime.worker")  # loads Faust, as the user's module has

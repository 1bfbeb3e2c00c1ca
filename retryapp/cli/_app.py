"""Finding the user's application: ``-A module[:app]``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from retryapp.core.errors import ConfigurationError, NoHandlersError, RetryAppError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from retryapp.core.topology import HandlerTopology
    from retryapp.kafka import KafkaConnection, PlanOptions

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_ATTRIBUTE = "app"


class Application(Protocol):
    """What commands need of a user's ``Retries``."""

    @property
    def topologies(self) -> Sequence[HandlerTopology]:
        """The topics of its handlers."""

    @property
    def connection(self) -> KafkaConnection:
        """Its cluster."""

    @property
    def plan_options(self) -> PlanOptions:
        """What it decides about its topics."""


class AppNotFoundError(ConfigurationError):
    """The module or attribute of ``-A`` cannot be had. Operator action: correct it, or run where the module is."""

    def __init__(self, spec: str, problem: str) -> None:
        """Args: spec: what was given. problem: what is wrong, as a clause."""
        self.spec = spec
        self.problem = problem
        super().__init__(
            f"-A {spec}: {problem}. Give module[:app], as 'billing' or 'shop.billing:app', and run where it can be "
            f"imported"
        )


class AppImportError(ConfigurationError):
    """The module of ``-A`` raised an exception while it was imported. Operator action: correct the module."""

    def __init__(self, spec: str, module: str, error: BaseException, where: str) -> None:
        """Args: where: file and line of the user's code, empty if unknown."""
        self.spec = spec
        self.where = where
        super().__init__(
            f"-A {spec}: {module} raised {type(error).__name__}: {error}" + (f" ({where})" if where else "")
        )


def app_option(*, required: bool) -> Callable[[F], F]:
    """Add ``-A`` as the argument ``app_spec``."""
    return click.option(
        "-A",
        "--app",
        "app_spec",
        metavar="MODULE[:APP]",
        required=required,
        help="The application, as for 'faust -A': a module, and the name of its Faust app when that is not 'app'.",
    )


def load_application(spec: str) -> Application:
    """Import the user's module and return its ``Retries``.

    Args:
        spec: ``module[:attribute]``; the attribute is a Faust app, ``app`` unless given.

    Raises:
        AppNotFoundError: no such module or attribute.
        AppImportError: the module raised an exception.
        NoRetriesError: no ``Retries`` extends that app.
    """
    module_name, _, attribute = spec.partition(":")
    if not module_name:
        raise AppNotFoundError(spec, "no module is named")
    found: Any = _import(spec, module_name)
    for name in (attribute or DEFAULT_ATTRIBUTE).split("."):
        if not hasattr(found, name):
            raise AppNotFoundError(spec, f"{module_name} has no {attribute or DEFAULT_ATTRIBUTE!r}")
        found = getattr(found, name)
    return _retries_of(found)


def load_handlers(spec: str) -> Application:
    """Return the application, which has to have handlers.

    Raises:
        NoHandlersError: it has none.
    """
    application = load_application(spec)
    if not application.topologies:
        raise NoHandlersError(spec)
    return application


def _import(spec: str, name: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as `faust -A` and `python -m` do
    try:
        return import_module(name)
    except RetryAppError:
        raise  # a policy or a handler of the module is wrong, and says so itself
    except Exception as error:  # the user's code raises anything
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise AppNotFoundError(spec, f"no module {error.name!r}") from error
        worker = import_module("retryapp.runtime.worker")  # loads Faust, as the user's module has
        raise AppImportError(spec, name, error, worker.user_line(error)) from error


def _retries_of(app: Any) -> Application:
    retries = import_module("retryapp.retries")  # loads Faust, so only when an application is named
    application: Application = retries.retries_of(app)
    return application

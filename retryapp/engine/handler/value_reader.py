"""Read the values of a handler: from their JSON, as pydantic does by the handler's value type.

Names in a type (``list["Order"]``, the fields of a model) may be defined after the handler is declared. Those that are
missing then are looked up again when the worker prepares, and refused there: each record would fail by them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import NoneType, SimpleNamespace, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from retryapp.core.errors import InvalidSettingError, UndecodableError

_EXPECTED = "expected bytes, dict for JSON, a pydantic model or what pydantic reads from JSON"


class ValueReader:
    """Reads the values of one handler."""

    def __init__(self, handler: str, value_type: Any, body: Callable[..., Any]) -> None:
        """Take a type; names in it may still be missing.

        Args:
            handler: its name, for errors.
            value_type: as declared.
            body: the handler's function; names that the type has as text are looked up in its module.

        Raises:
            InvalidSettingError: pydantic reads no values of the type.
        """
        self.value_type = value_type
        """The type, with what its names stand for once they are known."""
        self._handler = handler
        self._names = getattr(inspect.unwrap(body), "__globals__", {})
        self._adapter: TypeAdapter[Any] | None = None
        """Reads values; None for bytes."""
        self._missing = self._resolve()
        """What a name says that is not defined; None: all are."""

    def check(self) -> None:
        """Look up the names that were missing.

        Raises:
            InvalidSettingError: one is missing still.
        """
        if self._missing is not None:
            self._missing = self._resolve()
        if self._missing is not None:
            problem = (
                f"{self._missing}, so handler {self._handler} cannot decode its records. Define or import that name in "
                f"the module of the handler's function (of a model's field: in the model's module), not only under "
                f"TYPE_CHECKING; or write the class itself"
            )
            raise InvalidSettingError("value", self.value_type, problem)

    def decode(self, value: bytes | None) -> Any:
        """Decode a record's value.

        Raises:
            UndecodableError: it is not of the type.
            InvalidSettingError: the type has a name that is missing, and `check` was not asked.
        """
        if self._adapter is None:
            if self._missing is None:
                return value
            self.check()
            return self.decode(value)
        try:
            return self._adapter.validate_python(None) if value is None else self._adapter.validate_json(value)
        except (ValidationError, ValueError, RecursionError) as exc:
            problem = "it is null" if value is None else _problem(exc)  # the cause quotes the value
            if self.value_type in (str, str | None) and "Invalid JSON" in problem:
                problem += "; a text that is no JSON is decoded in the handler, which takes bytes"
            raise UndecodableError(type_text(self.value_type), problem) from None

    def _resolve(self) -> str | None:
        """Make what reads values; return what is wrong with a name that is missing, None: none is."""
        declared = self.value_type
        if declared in (bytes, bytes | None):
            return None
        if isinstance(declared, str | dict):
            raise InvalidSettingError("value", declared, f"{_EXPECTED}, not its name or content")
        try:
            declared = _evaluated(declared, self._names)
            adapter = TypeAdapter(dict[str, Any] if declared is dict else declared)
            if not adapter.pydantic_complete and not adapter.rebuild():
                return "a name in it is not defined"
        except NameError as error:  # pydantic's own is one
            return f"name {error.name!r} is not defined"
        except PydanticUserError as error:
            problem = f"{_EXPECTED}; take others as bytes, and decode them in the handler"
            raise InvalidSettingError("value", declared, f"{problem} ({error.message.splitlines()[0]})") from error
        self.value_type, self._adapter = declared, adapter
        return None


def _evaluated(declared: Any, names: dict[str, Any]) -> Any:
    """Return a type with what its texts stand for, as `Order` for the text in ``list["Order"]``.

    Raises:
        NameError: a name is not defined.
        InvalidSettingError: a text is no type.
    """
    if isinstance(declared, type):
        return declared
    holder = SimpleNamespace(__annotations__={"value": declared})
    try:
        return get_type_hints(holder, globalns=names, include_extras=True)["value"]
    except AttributeError as error:  # of a module: one that is loaded later may have it
        raise NameError(str(error), name=error.name) from error
    except (SyntaxError, TypeError) as error:
        raise InvalidSettingError("value", declared, f"{_EXPECTED}; a text in it is no type ({error})") from error


def type_text(declared: Any) -> str:
    """Return a type as its declaration writes it, without modules and annotations: ``list[Order]``, ``Card | Cash``."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return type_text(arguments[0])
    if origin in (Union, UnionType):
        return " | ".join(map(type_text, arguments))
    if not isinstance(declared, type) and not hasattr(declared, "__name__"):
        return "..." if declared is ... else repr(declared)  # a value, as in Literal["card"]
    name: str = "None" if declared is NoneType else declared.__name__
    return f"{name}[{', '.join(map(type_text, arguments))}]" if arguments else name


def _problem(exc: Exception) -> str:
    """Describe what is wrong without the value: messages travel in logs and headers."""
    if isinstance(exc, ValidationError):
        errors = exc.errors(include_url=False, include_input=False, include_context=False)
        shown = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'value'}: {e['msg']}" for e in errors[:5])
        return shown if len(errors) <= 5 else f"{shown}; and {len(errors) - 5} more"
    return type(exc).__name__

"""Names, tracebacks and fingerprints of errors, without reading source files.

* A shortened traceback has one line for each frame (file's base name, line, function) and the type and text of each
  error, causes first, as Python prints them; if it is too long its last lines are kept. Frames of retryapp are left out
  if there are others.
* A fingerprint groups failures with the same cause: a hash of the error types along ``__cause__``, of the user's
  frames as file base name and function, and of the message's template (`core.causes`). Line numbers do not count; nor
  do frames of retryapp, Faust and the standard library, nor of installed packages if a frame of the user's own is left.
  What a topic does not take is found in the handler or after its end: its topic counts, and no frame.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import FrameType, TracebackType
from typing import Any, Final

from retryapp.core.causes import template_of
from retryapp.core.errors import PublishError, shown
from retryapp.core.metadata import MAX_TRACE_BYTES
from retryapp.core.text import cut_tail, cut_text

MAX_FRAMES: Final = 30
"""Frames of one error that are shown, the last ones."""
MAX_CHAIN: Final = 10
"""Errors of one chain that are shown and hashed, outermost first."""
FINGERPRINT_CHARS: Final = 12
_TRACE_MESSAGE_BYTES: Final = 256
_LEFT_OUT: Final = "...\n"
_MACHINERY: Final = frozenset({"faust", "mode", "aiokafka"})
_USER_PACKAGES: Final = ("retryapp.demo",)


def qualified_name(named: Any) -> str:
    """Return the name of a type or function with its module; built-in ones have no module."""
    module = getattr(named, "__module__", None)
    name: str = named.__qualname__
    return name if module in {None, "builtins"} else f"{module}.{name}"


def plain_text(error: BaseException) -> str:
    """Return what an error says, also where its own code fails."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - user code: a __str__ that raises must not cost the record its failure
        return f"(its text cannot be had: __str__ raised {qualified_name(type(broken))})"


def shorten_trace(error: BaseException, text_of: Callable[[BaseException], str]) -> str | None:
    """Return a traceback of at most ``MAX_TRACE_BYTES`` of UTF-8; None for an error never raised and without cause."""
    chain = tuple(_chain(error))
    if len(chain) == 1 and error.__traceback__ is None:
        return None
    blocks = []
    for each in reversed(chain):
        every = _frames(each.__traceback__)
        frames = [at for at in every if not _is_ours(_module(at[0]))] or every
        skipped = [f"  ... {len(frames) - MAX_FRAMES} more"] if len(frames) > MAX_FRAMES else []
        lines = [
            f'  File "{_file(frame.f_code.co_filename)}", line {line}, in {_function(frame)}'
            for frame, line in frames[-MAX_FRAMES:]
        ]
        text = cut_text(text_of(each), _TRACE_MESSAGE_BYTES)
        blocks.append("\n".join((*skipped, *lines, f"{qualified_name(type(each))}: {text}")))
    return _last_lines("\nwhich caused:\n".join(blocks))


def place_of(error: BaseException) -> str | None:
    """Return where an error was raised: the last frame of the user's own, else the last one; None without any."""
    frames = _frames(error.__traceback__)
    if not frames:
        return None
    users = (at for at in reversed(frames) if _is_users(_module(at[0]), at[0].f_code.co_filename))
    frame, line = next(users, frames[-1])
    return place_in(frame, line)


def running_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the user's code in an event loop; None: it runs none.

    An app that is installed as a package looks like any library: then it is what retryapp has called.
    """
    called = None
    while frame is not None and _module(frame).partition(".")[0] not in ("asyncio", "mode"):
        if _is_users(_module(frame), frame.f_code.co_filename):
            return frame
        caller = frame.f_back
        if caller is not None and _is_ours(_module(caller)) and not _is_machinery(_module(frame)):
            called = frame
        frame = caller
    return called


def place_in(frame: FrameType, line: int) -> str:
    """Return a place in the code, for people."""
    return f"{_file(frame.f_code.co_filename)}:{line} in {frame.f_code.co_qualname}"


def raised_in(error: BaseException) -> str | None:
    """Return the module whose code raised an error, also where others have raised it again; None: it never was."""
    frames = _frames(error.__traceback__)
    return _module(frames[-1][0]) if frames else None


def fingerprint_of(error: BaseException, message: str) -> str:
    """Return a stable hash of an error's cause, with the message that is shown: ``FINGERPRINT_CHARS`` hex digits."""
    chain = tuple(_chain(error))
    frames = [frame for each in chain if not _is_of_topic(each) for frame, _ in _frames(each.__traceback__)]
    places = [(_module(frame), frame.f_code.co_filename, frame.f_code.co_qualname) for frame in frames]
    names = tuple(_kind(each) for each in chain)
    once = _fingerprint if len(places) <= MAX_FRAMES else _fingerprint.__wrapped__  # bounds the cache in bytes, too
    return once(names, tuple(places), template_of(message))


def _is_of_topic(error: BaseException) -> bool:
    return issubclass(type(error), PublishError)  # its own code may fail where it is asked


def _kind(error: Any) -> str:
    name = qualified_name(type(error))
    return f"{name} {shown(error.topic)}" if _is_of_topic(error) else name


@lru_cache(maxsize=1024)  # failures of one cause come by the thousand; no types: a class may hold a payload
def _fingerprint(names: tuple[str, ...], places: tuple[tuple[str, str, str], ...], template: str) -> str:
    own = [place for place in places if not _is_machinery(place[0])]
    users = [place for place in own if _is_users(*place[:2])] or own
    lines = [*names, *(f"{_file(path)}:{function}" for _, path, function in users), template]
    return hashlib.sha256("\n".join(lines).encode("utf-8", "backslashreplace")).hexdigest()[:FINGERPRINT_CHARS]


def _last_lines(text: str) -> str:
    if len(text.encode("utf-8", "backslashreplace")) <= MAX_TRACE_BYTES:
        return cut_tail(text, MAX_TRACE_BYTES)
    kept = cut_tail(text, MAX_TRACE_BYTES - len(_LEFT_OUT))
    return _LEFT_OUT + kept.partition("\n")[2]  # the first line is cut somewhere


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes, outermost first; of a group its first member goes on."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < MAX_CHAIN:
        seen.add(id(current))
        yield current
        current = current.exceptions[0] if isinstance(current, BaseExceptionGroup) else current.__cause__


def _frames(traceback: TracebackType | None) -> list[tuple[FrameType, int]]:
    frames = []
    while traceback is not None:
        frames.append((traceback.tb_frame, traceback.tb_lineno))
        traceback = traceback.tb_next
    return frames


@lru_cache(maxsize=1024)  # a program has so many files; each failure names some
def _file(path: str) -> str:
    return path.replace("\\", "/").rsplit("/", 1)[-1]


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__") or "?")


def _function(frame: FrameType) -> str:
    return f"{_module(frame)}.{frame.f_code.co_qualname}"


@lru_cache(maxsize=1024)
def _is_ours(module: str) -> bool:
    users = any(module == package or module.startswith(f"{package}.") for package in _USER_PACKAGES)
    return module.partition(".")[0] == "retryapp" and not users


@lru_cache(maxsize=1024)
def _is_machinery(module: str) -> bool:
    top = module.partition(".")[0]
    return _is_ours(module) or top in _MACHINERY or top in sys.stdlib_module_names


@lru_cache(maxsize=1024)
def _is_users(module: str, path: str) -> bool:
    return not _is_machinery(module) and "site-packages" not in path and "dist-packages" not in path

"""What the environment says, read once: variables ``RETRYAPP_...``.

Every setting is one field below, with its default and its help; the reference lists them.
Lengths of time are written with units (``30s``) and kept as milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from retryapp.core.checks import first_problem
from retryapp.core.durations import parse_duration_ms
from retryapp.core.errors import InvalidDurationError, InvalidSettingError

PREFIX = "RETRYAPP_"
_OTHERS = tuple(f"{PREFIX}{name}_" for name in ("DEMO", "TEST", "BENCH"))  # read by the demo, tests and benchmarks


def _to_ms(value: object) -> int:
    try:
        return parse_duration_ms(value)  # type: ignore[arg-type]  # refuses other types itself, with a message
    except InvalidDurationError as error:
        raise ValueError(str(error)) from error


Milliseconds = Annotated[int, BeforeValidator(_to_ms)]
Port = Annotated[int, Field(ge=1, le=65_535)]


class Settings(BaseSettings):
    """All settings of this process; frozen. Make it with :func:`load_settings`, which names a wrong variable."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
        validate_default=False,
    )

    cache_dir: Path = platformdirs.user_cache_path("retryapp")
    """Folder for what is downloaded once (jars of the development broker and of Spark); safe to delete."""
    datadir: Path = Path(".retryapp")
    """Folder of local state. Each worker locks the first free `GROUP/worker-N` in it; the development broker uses
    `broker`, the pipeline `lake`."""
    grace: Milliseconds = 25_000
    """How long running handlers may continue after SIGTERM; then they are cancelled and their records given back."""
    log_format: Literal["text", "json"] = "text"
    """Form of a worker's log: `text`, or `json`, one object a line. An app with `logging_config=` has its own."""
    mask: str = ""
    """Headers and fields of JSON keys and values that pages, API, logs and messages of errors do not show: names, and
    JSON pointers with `*` for every element of a list, as `authorization, /customer/email, /items/*/card`."""
    metrics_port: Port | None = None
    """First port to try for a worker's metrics alone, `/metrics`; without it only the pages have them."""
    peer_secret: SecretStr = SecretStr("")
    """Shared by all workers of the group: a worker shows the numbers of others that ask with it. Needed where pages of
    other machines may not be looked at without a token."""
    token: SecretStr = SecretStr("")
    """Token that `retryapp top` shows to the workers that --url names, and to no others."""
    web_bind: str = "127.0.0.1"
    """Address that a worker's pages listen on. One that others reach needs RETRYAPP_WEB_OPERATORS."""
    web_hosts: str = ""
    """Names under which the pages are reached, besides those of this machine, as behind a proxy; commas between."""
    web_operators: str = ""
    """Who may do what through the pages: `local`, everybody on this machine; `NAME:SHA256`, who has the token with this
    hash; `anyone:ROLE`. Each may end with a role, `:look`, `:operate` (unless given) or `:admin`; commas between
    several. Whoever else is on this machine may look."""
    web_proxies: str = ""
    """Addresses or networks of proxies that log people in, commas between: of their requests `X-Forwarded-User` and
    `X-Forwarded-Role` count."""
    web_port: Port = 6066
    """First port to try for a worker's pages; each further worker on the machine takes the next free one."""


def variable_of(name: str) -> str:
    """Return the variable of a setting.

    >>> variable_of("web_port")
    'RETRYAPP_WEB_PORT'
    """
    return PREFIX + name.upper()


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that look like settings and are none: name → the setting that is spelt most like it, or ""."""
    known = [*map(variable_of, Settings.model_fields)]
    strange = [name for name in environment if name.startswith(PREFIX) and name not in known]
    strange = [name for name in sorted(strange) if not name.startswith(_OTHERS)]
    return {name: next(iter(get_close_matches(name, known, n=1, cutoff=0.8)), "") for name in strange}


def load_settings() -> Settings:
    """Read the environment.

    Raises:
        InvalidSettingError: a variable cannot be used; the message names it.
    """
    try:
        return Settings()
    except ValidationError as error:
        name, given, problem = first_problem(error)
        raise InvalidSettingError(variable_of(name), given, problem) from error

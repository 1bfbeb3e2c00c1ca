"""What the environment says, read once: variables ``RETRYAPP_...``.

Every setting is one field below, with its default and its help; the reference lists them.
Lengths of time are written with units (``30s``) and kept as milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

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


def _setting(name: str, default: object, help_text: str, **limits: Any) -> Any:
    return Field(default=default, validation_alias=PREFIX + name, description=help_text, **limits)


class Settings(BaseSettings):
    """All settings of this process; frozen. Make it with :func:`load_settings`, which names a wrong variable."""

    model_config = SettingsConfigDict(frozen=True, extra="ignore", validate_default=False, env_ignore_empty=True)

    cache_dir: Path = _setting(
        "CACHE_DIR",
        platformdirs.user_cache_path("retryapp"),
        "Folder for what is downloaded once (the jars of the development broker); safe to delete.",
    )
    datadir: Path = _setting(
        "DATADIR",
        Path(".retryapp"),
        "Folder of local state. Each worker locks the first free worker-N in it; the development broker uses broker.",
    )
    grace_ms: Milliseconds = _setting(
        "GRACE",
        25_000,
        "How long running handlers may continue after SIGTERM; then they are cancelled and their records given back.",
    )
    log_format: Literal["text", "json"] = _setting(
        "LOG_FORMAT",
        "text",
        "Form of a worker's log: `text`, or `json`, one object a line. An app with `logging_config=` has its own.",
    )
    mask: str = _setting(
        "MASK",
        "",
        "Headers and fields of JSON values that pages, API, logs and messages of errors do not show: names, and JSON "
        "pointers with `*` for every element of a list, as `authorization, /customer/email, /items/*/card`.",
    )
    metrics_port: int | None = _setting(
        "METRICS_PORT",
        None,
        "First port to try for a worker's metrics alone, `/metrics`; without it only the pages have them.",
        ge=1,
        le=65_535,
    )
    peer_secret: SecretStr = _setting(
        "PEER_SECRET",
        SecretStr(""),
        "Shared by all workers of the group: a worker shows the numbers of others that ask with it. Needed where pages "
        "of other machines may not be looked at without a token.",
    )
    token: SecretStr = _setting(
        "TOKEN",
        SecretStr(""),
        "Token that `retryapp top` shows to the workers that --url names, and to no others.",
    )
    web_bind: str = _setting(
        "WEB_BIND",
        "127.0.0.1",
        "Address that a worker's pages listen on. One that others reach needs RETRYAPP_WEB_OPERATORS.",
    )
    web_hosts: str = _setting(
        "WEB_HOSTS",
        "",
        "Names under which the pages are reached, besides those of this machine, as behind a proxy; commas between.",
    )
    web_operators: str = _setting(
        "WEB_OPERATORS",
        "",
        "Who may do what through the pages: `local`, everybody on this machine; `NAME:SHA256`, who has the token with "
        "this hash; `anyone:ROLE`. Each may end with a role, `:look`, `:operate` (unless given) or `:admin`; commas "
        "between several. Whoever else is on this machine may look.",
    )
    web_proxies: str = _setting(
        "WEB_PROXIES",
        "",
        "Addresses or networks of proxies that log people in, commas between: of their requests `X-Forwarded-User` and "
        "`X-Forwarded-Role` count.",
    )
    web_port: int = _setting(
        "WEB_PORT",
        6066,
        "First port to try for a worker's pages; each further worker on the machine takes the next free one.",
        ge=1,
        le=65_535,
    )


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return variables that look like settings and are none: name → the setting that is spelt most like it, or ""."""
    known = [str(field.validation_alias) for field in Settings.model_fields.values()]
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
        first = error.errors()[0]
        problem = first["msg"].removeprefix("Value error, ")  # pydantic's, before ours
        raise InvalidSettingError(str(first["loc"][0]), first["input"], problem) from error

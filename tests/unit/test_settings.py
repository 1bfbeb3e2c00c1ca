"""Reading the environment once, and the table of all settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from retryapp.core.errors import InvalidSettingError
from retryapp.settings import Settings, load_settings, unknown_variables, variable_of


def test_defaults_keep_pages_on_loopback() -> None:
    """Nothing is reachable from other machines unless somebody says so."""
    assert load_settings().web_bind == "127.0.0.1"


def test_a_variable_replaces_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths of time are written with units and kept in milliseconds."""
    monkeypatch.setenv("RETRYAPP_GRACE", "1m30s")
    monkeypatch.setenv("RETRYAPP_DATADIR", "/srv/state")
    settings = load_settings()
    assert settings.grace == 90_000
    assert settings.datadir == Path("/srv/state")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("RETRYAPP_GRACE", "25", "='25': '25' is not a duration: a bare number has no unit"),
        ("RETRYAPP_WEB_PORT", "70000", "65535"),
        ("RETRYAPP_WEB_PORT", "http", "integer"),
    ],
)
def test_a_wrong_variable_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str) -> None:
    """The message has the variable, its value and what is expected."""
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidSettingError) as caught:
        load_settings()
    assert caught.value.name == name
    assert repr(value) in str(caught.value)
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_an_empty_variable_is_as_if_it_were_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compose file leaves it. The folder of local state was the current one."""
    unset = load_settings()
    for name in Settings.model_fields:
        monkeypatch.setenv(variable_of(name), "")
    assert load_settings() == unset


def test_variables_that_are_no_settings_are_found() -> None:
    """With the setting that was meant; what the demo, tests and other programs read is left out."""
    environment = {"RETRYAPP_GARCE": "60s", "RETRYAPP_COLOUR": "red", "RETRYAPP_GRACE": "60s"}
    others = {"RETRYAPP_DEMO_BROKER": "x", "RETRYAPP_TEST_BROKER": "x", "GRACE": "1s"}
    assert unknown_variables(environment | others) == {"RETRYAPP_COLOUR": "", "RETRYAPP_GARCE": "RETRYAPP_GRACE"}


def test_settings_are_frozen() -> None:
    """What was read once does not change in mid-run."""
    with pytest.raises(ValidationError):
        load_settings().web_port = 1  # type: ignore[misc]


def test_every_setting_has_help() -> None:
    """The documentation is made from it."""
    for field in Settings.model_fields.values():
        assert (field.description or "").endswith(".")

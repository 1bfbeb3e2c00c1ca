"""What is masked: headers by name, fields of JSON values by pointer; and texts are freed of their values."""

from __future__ import annotations

import json

import pytest

from retryapp.core.errors import InvalidSettingError
from retryapp.core.masking import Mask, free, parse_mask
from retryapp.core.record import Headers

VALUE = '{"id": 1.50, "card": "4111-22", "a/b": {"~": "tilde"}, "items": [{"pin": 9876}, {"pin": 9877, "n": 2}]}'


@pytest.mark.parametrize(
    ("setting", "masked"),
    [
        ("/card", {"card": "***"}),
        ("/a~1b/~0", {"a/b": {"~": "***"}}),
        ("/items/1/pin", {"items": [{"pin": 9876}, {"pin": "***", "n": 2}]}),
        ("/items/*/pin", {"items": [{"pin": "***"}, {"pin": "***", "n": 2}]}),
        ("/items", {"items": "***"}),
        ("/card, /items/0", {"card": "***", "items": ["***", {"pin": 9877, "n": 2}]}),
    ],
)
def test_a_pointer_masks_its_field_and_no_other(setting: str, masked: dict[str, object]) -> None:
    """As RFC 6901 has it; `*` is every element of a list."""
    shown = parse_mask(setting).json(VALUE)
    assert shown is not None
    assert json.loads(shown) == {**json.loads(VALUE), **masked}


@pytest.mark.parametrize("setting", ["/Card", "/items/2/pin", "/items/-", "/items/pin", "/id/x", "card", "/*"])
def test_what_is_not_there_changes_nothing(setting: str) -> None:
    """The text stays as it was sent, numbers too."""
    assert parse_mask(setting).json(VALUE) == VALUE


@pytest.mark.parametrize("text", ['{"card": "one", "card": "two"}', '{"in": {"card": "one"}, "in": {}}'])
def test_what_has_a_name_twice_is_not_shown(text: str) -> None:
    """Readers take the last one; what the first one has is a secret as well."""
    assert parse_mask("/card, /in/card").json(text) is None


def test_a_text_is_freed_of_masked_values() -> None:
    """Of headers, and of all that is in a masked field of value or key; not of what is too short to be looked for."""
    mask = parse_mask("X-Token, /card, /items, /n")

    def freed(text: str, headers: Headers, value: bytes | None, key: bytes | None = None) -> str:
        return free(text, mask.secrets((headers, key, value)))

    value = b'{"card": "4111-22", "items": [{"pin": 9876}], "n": 1, "name": "ann"}'
    text = "ann: card 4111-22 with 9876 and tok3n was refused 1 time"
    assert freed(text, (("x-token", b"tok3n"), ("other", b"time")), value) == (
        "ann: card *** with *** and *** was refused 1 time"
    )
    assert freed("token t0k-3n of ann", (("X-Token", b"Bearer t0k-3n"),), None) == "token *** of ann"
    name = "José of Ann".encode()
    assert freed(f"name {name} of her", (("X-Token", name),), None) == "name b'***' of her"
    assert freed(text, (), b"\xff") == text
    assert freed("half of \ud83d, a pair", (), b'{"card": "of \\ud83d, a"}') == "half *** pair"
    assert freed(text, (), b"[" * 100_000) == text
    assert freed("no card 4111-22", (), b"\xff", b'{"card": "4111-22"}') == "no card ***"


@pytest.mark.parametrize(
    "escaped", [r"ab\/cd==", r"a\u002Bb\/c", r"\u0026\u0026\u0026", r"\uD83D\uDE00 Jos\u00E9", r"\\\"\/"]
)
@pytest.mark.parametrize("codec", ["utf-8", "utf-16"])
def test_a_text_is_freed_of_values_as_their_sender_has_escaped_them(escaped: str, codec: str) -> None:
    """PHP, .NET and Go escape otherwise than Python; an error may have the text as it came, or quoted once more."""
    text = f'{{"name": "a\\/b", "in": {{"card": ["{escaped}"]}}}}'
    secrets = parse_mask("/in/card").secrets(((), None, text.encode(codec)))
    hidden = text.replace(escaped, "***")
    assert free(f"cannot read {text}", secrets) == f"cannot read {hidden}"
    assert free(f"cannot read {text.encode()}", secrets) == f"cannot read {hidden.encode()}"
    assert free(f"it is {json.loads(text)['in']['card'][0]}", secrets) == "it is ***"


def test_a_text_is_freed_of_a_header_that_is_no_utf_8() -> None:
    """As bytes, which is how an error has them."""
    raw = b"Basic \xff\xfe'12"
    secrets = parse_mask("X-Token").secrets(((("X-Token", raw),), None, None))
    for shown in (raw, raw[6:]):
        assert free(f"no token like {shown!r}", secrets) == 'no token like b"***"'


def test_names_of_headers_may_have_any_letters() -> None:
    """With a slash as a pointer has it."""
    assert parse_mask("Card Number, x~1y").headers == {"card number", "x/y"}


@pytest.mark.parametrize(
    "text", ["/a~2b", "authorization;/card", "a; b", "authorization /card", "customer/card", "/card;/pin"]
)
def test_a_setting_that_is_no_pointer_is_refused(text: str) -> None:
    """Else it would mask nothing, in silence."""
    assert parse_mask("") == Mask()
    with pytest.raises(InvalidSettingError, match="RETRYAPP_MASK"):
        parse_mask(text)

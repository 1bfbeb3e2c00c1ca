"""Names of causes: what differs from record to record goes, what tells causes apart stays."""

from __future__ import annotations

import doctest
import re
from typing import Final

import pytest

from retryapp.core import causes
from retryapp.core.causes import cause_name, template_of

PAYLOAD: Final = "{'id': %d, 'name': %r, 'tags': [%d, 2], 'note': None}"


@pytest.mark.parametrize(
    ("message", "template"),
    [
        ("HTTP 503: maintenance", "HTTP 503: maintenance"),
        ("500: boom", "500: boom"),
        ("ledger shard 7 is read-only", "ledger shard <number> is read-only"),
        ("no answer within 1h30m", "no answer within <number>"),
        ("no answer within 2m0.25s, after 1d2h3m4s5ms", "no answer within <number>, after <number>"),
        ('404: {"error": "no plane has the tail number N123AB"}', "404: <text>"),
        ("503, message='Service Unavailable', url='http://h:1/e'", "503, message=<value>, url=<value>"),
        ("404 Client Error: Not Found for url: https://h/1?x=1", "404 Client Error: Not Found for url: <url>"),
        ("HTTP Error 502: Bad Gateway", "HTTP Error 502: Bad Gateway"),
        ('answered {"status": 402, "code": "NO_FUNDS"}', "answered status: 402, <text>: 'NO_FUNDS'"),
        ("[Errno 111] Connect call failed ('10.0.0.1', 80)", "[Errno 111] Connect call failed (<data>)"),
        ("[Errno 2] No such file or directory: '/a/b'", "[Errno 2] No such file or directory: <text>"),
        ("SQLSTATE[42P01]: no table x1", "SQLSTATE[42P01]: no table x<number>"),
        ("('HY000', \"[HY000] [Driver]gone (17)\")", "(<text>, '[HY000]')"),
        ("(1062, \"Duplicate entry 'x'\")", "(1062, <text>)"),
        ("ORA-00942: table or view does not exist", "ORA-00942: table or view does not exist"),
        ("StatusCode.UNAVAILABLE: ECONNREFUSED", "StatusCode.UNAVAILABLE: ECONNREFUSED"),
        ("no such customer: John Smith", "no such customer: <name>"),
        ("customer Zoë O'Brien is locked", "customer <name> is locked"),
        ("Access Denied", "Access Denied"),
        ("mail to ann@example.org at 17:48 on 2026-11-23", "mail to <email> at <time> on <time>"),
        ("read /var/lib/x.db or C:\\x and/or", "read <path> or <path> and/or"),
        ("token 3f2504e0-4f89-11d3-9a0c-0305e82c3301 of fe80::1f", "token <id> of <ip>"),
        ("it can't be: expected str, got None", "it can't be: expected str, got None"),
        ("tail: 'half of a quote", "tail: <text>"),
        ("user=alice state=OPEN", "user=<value> state=OPEN"),
        ("", ""),
    ],
)
def test_templates(message: str, template: str) -> None:
    """Of messages as libraries and people write them."""
    assert template_of(message) == template


def test_no_repeated_group_is_possessive() -> None:
    """Python before 3.11.5 matches such wrongly; on a newer one nothing else would tell."""
    patterns = [each.pattern for each in vars(causes).values() if isinstance(each, re.Pattern)]
    assert len(patterns) > 5
    assert not [each for each in patterns if re.search(r"\)[*+?]\+", each)]


def test_the_examples_of_the_module() -> None:
    """Documentation that is run."""
    failed, tried = doctest.testmod(causes)
    assert (failed, tried) == (0, 2)


@pytest.mark.parametrize(
    "message",
    [
        "cannot book {} for {} {}, {}".format(PAYLOAD, "{first}", "{last}", "{url}"),
        "Flight(id=%d, tail=%r, plane=%d) of {first} {last} has no {url}",
        "order %d: %r was refused with code 409 after %d ms",
    ],
)
def test_a_thousand_records_have_one_cause(message: str) -> None:
    """Whatever payload, names and addresses their messages quote."""
    names = ("Ann", "John", "Zoë", "Müller", "O'Brien", "Meier-Schmidt")
    words = ("", "x", "it's", 'a "b" c', "C:\\x\\", "17", "long " * 9)
    seen = set()
    for n in range(500):
        filled = message % (n, words[n % 7], n * 7919)
        seen.add(
            template_of(
                filled.replace("{first}", names[n % 6])
                .replace("{last}", names[n // 6 % 6])
                .replace("{url}", f"https://h{n}.example.org/{n}?q={n}")
            )
        )
    assert len(seen) == 1


def test_free_text_is_cut() -> None:
    """A message of many words has its first ones."""
    text = template_of("lorem " * 500)
    assert text == "lorem " * causes.MAX_WORDS + "…"
    assert template_of("a-" * 19 + " b" * 500).count("b") == causes.MAX_WORDS - 1
    assert len(template_of(f"{'w' * 30} " * 9)) <= causes.MAX_CHARS


@pytest.mark.parametrize(
    "part",
    ["a", "'", '"', "\\", "'a ", "Ab ", "1.", "http ", "err((", "/", "a=", ":1", "@", "é1", "<", "-1", "[errno "],
)
def test_no_text_takes_long(part: str) -> None:
    """A thousand times anything takes a millisecond at most: what is tried in ever more ways would take minutes."""
    text = part * (100_000 // len(part))
    for _ in range(500):
        causes._template.cache_clear()
        template_of(text)


def test_a_name_has_type_place_and_template() -> None:
    """As far as they are known."""
    assert (
        cause_name("ValueError", "pay.py:3 in charge", "shard 7") == "ValueError at pay.py:3 in charge: shard <number>"
    )
    assert cause_name("TimeoutError", None, "") == "TimeoutError"

"""What `retryapp pending show` and `dead show` print of a record whose value is not there."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from samples import dead as letter_of
from samples import waiting_row

from retryapp.cli import dead, pending
from retryapp.cli.console import ExitCode
from retryapp.core.errors import RetryAppError, TopicMissingError
from retryapp.core.headers import encode_metadata
from retryapp.core.record import Record
from retryapp.core.reference import refer
from retryapp.core.rows import decode_row, encode_row, key_of_row
from retryapp.core.topology import HandlerTopology
from retryapp.kafka.errors import UnreadableHeaderError
from retryapp.ports import PendingEntry

NAME = "app/orders@kq8G0bTz/0/7"
PLACE = ["--broker", "127.0.0.1:1", NAME]
HERE = " ".join(PLACE)
ROW = waiting_row(7)
WHOLE = decode_row(ROW.value or b"")
SENT = Record("orders", 0, 7, 1, b"k", b"v", ())
REFERENCE = encode_row(replace(WHOLE, value=b"", reference=refer(SENT, 0)))
STOP = encode_row(replace(WHOLE, value=b"", headers=encode_metadata(replace(letter_of(7), no_payload=True))))


def shown(monkeypatch: pytest.MonkeyPatch, module: Any, found: Any, *words: str, read: Any = None) -> Result:
    """Run `show` of a module for a record that was found so; `read`: what a look at the main topic finds, or raises."""

    def read_record(*_place: object) -> Record | None:
        if isinstance(read, RetryAppError):
            raise read
        return read  # type: ignore[no-any-return]

    monkeypatch.setattr(
        module, "resolve_failure", lambda *_: (None, HandlerTopology("app", "orders", delays_ms=(1_000,)), None)
    )
    monkeypatch.setattr(pending, "read_record", read_record)
    monkeypatch.setattr(pending, "mark_circuits", lambda *_: None)
    monkeypatch.setattr(module, "find_waiting" if module is pending else "find_dead", lambda *_: found)
    return CliRunner().invoke(module.command, ["show", *PLACE, *words], standalone_mode=False)


def entry(row: bytes) -> PendingEntry:
    key = key_of_row(ROW.value or b"", ROW.identity)
    return PendingEntry(partition=0, key=key, value=row)


def letter(reason: str, value: bytes | None) -> tuple[Record, None]:
    headers = encode_metadata(replace(letter_of(7), reason=reason))
    return Record("app.orders.dlq", 0, 5, 1_700_000_000_000, b"k", value, headers), None


@pytest.mark.parametrize(
    "error",
    [
        TopicMissingError("orders", "b:9092"),
        UnreadableHeaderError("record orders[0]@7 has a header whose name is not UTF-8: b'\\xff'"),
    ],
)
def test_a_record_whose_main_topic_cannot_be_read_is_shown_all_the_same(
    monkeypatch: pytest.MonkeyPatch, error: RetryAppError
) -> None:
    """It waits: attempts, error and due time are in its row. Why its value is missing, is said."""
    done = shown(monkeypatch, pending, entry(REFERENCE), "--json", read=error)
    facts = json.loads(done.stdout)
    assert (done.return_value, facts["found"], facts["unread"]) == (ExitCode.FINE, True, str(error))
    assert facts["failure_id"] == NAME


@pytest.mark.parametrize(
    ("module", "found", "read", "said"),
    [
        (pending, None, None, f"dead ('retryapp dead show {HERE}')"),
        (pending, entry(REFERENCE), TopicMissingError("orders", "b:9092"), "topic 'orders' does not exist"),
        (pending, entry(REFERENCE), None, "the main topic does not have it any more"),
        (pending, entry(b"torn"), None, "its value cannot be written"),
        (pending, entry(STOP), None, f"its dead letter has it: 'retryapp dead show {HERE} --raw'"),
        (
            dead,
            None,
            None,
            f"waits ('retryapp pending show {HERE}')",
        ),
        (dead, letter("too-large", b""), None, "the letter does not have it (reason too-large)"),
        (dead, letter("gone", b""), None, "the letter does not have it (reason gone)"),
    ],
)
def test_raw_writes_a_value_or_nothing(
    monkeypatch: pytest.MonkeyPatch, module: Any, found: Any, read: Any, said: str
) -> None:
    """In `--raw > value.bin` a sentence, or a damaged row, would be taken for the value."""
    done = shown(monkeypatch, module, found, "--raw", read=read)
    assert (done.return_value, done.stdout_bytes) == (ExitCode.FINDING, b"")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("module", "found", "value"),
    [
        (pending, entry(ROW.value or b""), b"v"),
        (pending, entry(REFERENCE), b"v"),
        (dead, letter("exhausted", b"\xff"), b"\xff"),
        (dead, letter("damaged", b"v"), b"v"),
        (dead, letter("exhausted", b""), b""),
    ],
)
def test_raw_writes_a_value_byte_for_byte(
    monkeypatch: pytest.MonkeyPatch, module: Any, found: Any, value: bytes
) -> None:
    """Also an empty one, and that of a record whose headers are damaged."""
    done = shown(monkeypatch, module, found, "--raw", read=SENT)
    assert (done.return_value, done.stdout_bytes) == (ExitCode.FINE, value)

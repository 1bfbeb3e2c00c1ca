"""``pending`` and ``dead``: they read the topics, with no worker anywhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retryapp.core.circuit import KeptCircuit
from retryapp.core.control import LetterMark, MarkKind
from retryapp.core.jobs import Steering
from retryapp.core.marks import PROGRESS, progress_value
from retryapp.core.topology import HandlerTopology
from retryapp.kafka import KafkaAdmin, KafkaConnection, ensure_topics

FAR_MS = 4_000_000_000_000


def test_waiting_records_are_listed_by_due_time(retryapp, shop):
    """The last row of each record, next due first; a removed one is not listed."""
    shop.wait(0, 7, FAR_MS)
    shop.wait(0, 7, FAR_MS + 3_000)
    shop.wait(1, 7, FAR_MS + 1_000)
    shop.wait(2, 9, FAR_MS + 2_000)
    shop.put(2, 9, None)
    done = retryapp("pending", "list", *shop.place, "--json")
    assert done.code == 0
    assert [record["failure_id"] for record in done.json["records"]] == [shop.failure_id(1, 7), shop.failure_id(0, 7)]
    first = done.json["records"][0]
    assert (first["main"], first["due_at_ms"], first["attempt"]) == (shop.topology.main, FAR_MS + 1_000, 2)
    assert (first["tier"], first["error_type"], first["damaged"]) == ("5m", "builtins.TimeoutError", None)
    assert done.json["matching"] == 2
    shown = retryapp("pending", "list", *shop.place)
    line = next(line for line in shown.out.splitlines() if shop.failure_id(1, 7) in line)
    assert "(2096-10-02 07:06:41.000 UTC)" in line, "relative and in UTC, one record a line even in a pipe"
    assert "2 of 2 waiting" in shown.out


def test_a_limited_list_says_how_many_there_are(retryapp, shop):
    """The next due ones, over all partitions."""
    for offset in range(5):
        shop.wait(offset % 3, offset, FAR_MS + offset)
    first = retryapp("pending", "list", *shop.place, "--limit", 2, "--json").json
    assert ([record["origin_offset"] for record in first["records"]], first["matching"]) == ([0, 1], 5)
    assert "2 of 5 waiting" in retryapp("pending", "list", *shop.place, "--limit", 2).out


def test_filters_narrow_the_list(retryapp, shop):
    """By partition, by main topic, by what the record and its failure are."""
    shop.wait(0, 1, 1_700_000_000_000)
    shop.wait(1, 2, FAR_MS)

    def offsets(*options: object) -> list[int]:
        records = retryapp("pending", "list", *shop.place, *options, "--json").json["records"]
        return [record["origin_offset"] for record in records]

    assert offsets("--partition", 1) == [2]
    assert offsets("--topic", shop.topology.main) == [1, 2]
    shop.wait(2, 3, FAR_MS, value=b'{"id": 3}', headers=(("tenant", b"acme"),), error_message="ledger shard 7")
    for words in (("--message", "SHARD 7"), ("--has-header", "tenant=acme"), ("--field", "/id=3")):
        assert offsets(*words) == [3]
    assert offsets("--field", "/id=3", "--key", "other") == []


def test_one_waiting_record_is_shown_decoded(retryapp, shop):
    """Metadata, the user's headers and the value, for people and as JSON."""
    shop.wait(2, 5, FAR_MS, value=b'{"id":7,"amount":1.10}', headers=(("trace", b"t-1"), ("raw", b"\xff"), ("n", None)))
    identity = shop.failure_id(2, 5)
    done = retryapp("pending", "show", "--broker", shop.operator.bootstrap, identity)
    assert done.code == 0
    for text in (identity, '"amount": 1.10', "trace: t-1", "raw: 0xff", "n: (null)", "shop.charge", "no answer"):
        assert text in done.out
    assert "attempt 1 2023-11-14 22:13:20.000 UTC builtins.OSError" in done.out
    told = retryapp("pending", "show", *shop.place, identity, "--json").json
    assert told["found"] is True
    assert told["metadata"]["attempt"] == 2
    assert told["value"]["text"] == '{"id":7,"amount":1.10}'
    assert retryapp("pending", "show", *shop.place, identity, "--raw").out == '{"id":7,"amount":1.10}'


def test_a_due_record_says_that_a_circuit_holds_it_back(retryapp, shop):
    """By what its partition has written down last; one that is not due, or waits for another service, does not."""
    changes = (0, {"": "open"}), (0, {"": "half-open"}), (1, {"": "open"}), (1, {"": "closed", "ledger": "open"})
    for partition, states in changes:
        circuits = {name: KeptCircuit(state=state, by="life") for name, state in states.items()}
        value = progress_value({}, "", steering=Steering(circuits=circuits).written)
        shop.publish(shop.topology.pending_changelog, partition, PROGRESS, value)
    for partition in (0, 1):
        shop.wait(partition, 5, 1_700_000_000_000)
    shop.wait(0, 6, FAR_MS)
    shop.wait(1, 7, 1_700_000_000_000, circuit="ledger")
    records = retryapp("pending", "list", *shop.place, "--json").json["records"]
    assert {(record["partition"], record["origin_offset"]): record["held_back_by"] for record in records} == {
        (0, 5): "circuit", (1, 5): None, (0, 6): None, (1, 7): "circuit ledger",
    }  # fmt: skip
    shown = retryapp("pending", "show", *shop.place, shop.failure_id(0, 5)).out
    assert "held back by       circuit" in shown


def test_a_record_that_does_not_wait_is_a_finding(retryapp, shop):
    """Exit code 1, also when another offset of the partition waits, or the topic was made anew; empty lists say so."""
    assert retryapp("pending", "list", *shop.place).out.strip() == "nothing waits"
    assert retryapp("pending", "list", *shop.place, "--key", "k").out.strip() == "nothing waits that fits"
    assert retryapp("dead", "list", *shop.place).out.strip() == "no dead letters"
    shop.wait(0, 1, FAR_MS)
    for identity in (shop.failure_id(0, 2), shop.failure_id(1, 1), shop.failure_id(0, 1).replace("@", "@x")):
        done = retryapp("pending", "show", *shop.place, identity, "--json")
        assert (done.code, done.json) == (1, {"found": False, "failure_id": identity})
        assert retryapp("dead", "show", *shop.place, identity).code == 1


def test_without_their_topic_dead_letters_are_not_said_to_be_none(retryapp, shop):
    """From outside a handler that keeps none looks like one whose topic was deleted: both are named."""
    shop.operator.delete_topic(letters := shop.topology.dlq)
    said = f"\n{letters} is not there: its handler keeps no dead letters"
    for words in (("dead", "list"), ("causes",), ("dead", "replay", "--all", "--preview")):
        assert said in retryapp(*words, *shop.place).out
        assert retryapp(*words, *shop.place, "--json").json["missing_topics"] == [letters]
    assert (
        "was deleted: by retention, or with its topic"
        in retryapp("dead", "show", *shop.place, shop.failure_id(0, 1)).out
    )


def test_a_damaged_row_is_listed_and_not_a_failure(retryapp, shop):
    """It is due at once, and shows what the key says and what is wrong."""
    shop.put(0, 3, b"\x09junk")
    shop.wait(0, 4, FAR_MS + 1)
    done = retryapp("pending", "list", *shop.place, "--json")
    assert [record["failure_id"] for record in done.json["records"]] == [None, shop.failure_id(0, 4)]
    assert "damaged row" in done.json["records"][0]["damaged"]
    assert "(damaged)" in retryapp("pending", "list", *shop.place).out
    assert retryapp("pending", "show", *shop.place, shop.failure_id(0, 3)).code == 0


def test_dead_letters_are_listed_latest_first(retryapp, shop):
    """With reason; filtered by reason and partition; paged."""
    shop.bury(0, 1)
    shop.bury(1, 2, reason="rejected", error_type="retryapp.Reject", attempt=1)
    shop.bury(0, 3, reason="rejected")
    done = retryapp("dead", "list", *shop.place, "--json").json
    assert done["matching"] == 3
    assert {record["failure_id"] for record in done["records"]} == {
        shop.failure_id(0, 1),
        shop.failure_id(1, 2),
        shop.failure_id(0, 3),
    }
    instants = [record["dead_ms"] for record in done["records"]]
    assert instants == sorted(instants, reverse=True)
    rejected = retryapp("dead", "list", *shop.place, "--reason", "rejected", "--json").json
    assert {record["reason"] for record in rejected["records"]} == {"rejected"}
    none = retryapp("dead", "list", *shop.place, "--reason", "expired").out.strip()
    assert none == "no dead letters that fit", "there are others"
    assert rejected["matching"] == 2
    assert len(retryapp("dead", "list", *shop.place, "--partition", 0, "--json").json["records"]) == 2
    first = retryapp("dead", "list", *shop.place, "--limit", 2, "--json").json
    assert [r["failure_id"] for r in first["records"]] == [r["failure_id"] for r in done["records"]][:2]
    text = retryapp("dead", "list", *shop.place).out
    assert "3 of 3 dead letters" in text
    (one,) = retryapp("dead", "list", *shop.place, "--error", "retryapp.Reject", "--json").json["records"]
    assert one["failure_id"] == shop.failure_id(1, 2)
    of_cause = retryapp("dead", "list", *shop.place, "--cause", one["cause_id"], "--json").json["records"]
    assert of_cause == [one]
    shop.wait(0, 9, FAR_MS)
    causes = retryapp("causes", *shop.place, "--json").json["causes"]
    assert (sum(each["dead"] for each in causes), sum(each["waiting"] for each in causes)) == (3, 1)
    assert one["cause_id"] in retryapp("causes", *shop.place).out


def test_one_dead_letter_is_shown(retryapp, shop):
    """The last one of a record that died twice, with traceback and value."""
    shop.bury(0, 1, value=b"first")
    shop.bury(0, 1, value="zwölf".encode(), error_trace="File charge.py\nTimeoutError", reason="expired", replays=1)
    done = retryapp("dead", "show", "--broker", shop.operator.bootstrap, shop.failure_id(0, 1))
    assert done.code == 0
    for text in ("expired", "zwölf", "File charge.py", "TimeoutError", "trace: t-1"):
        assert text in done.out
    assert "first" not in done.out.replace("first failed", "")
    told = retryapp("dead", "show", *shop.place, shop.failure_id(0, 1), "--json").json
    assert (told["metadata"]["reason"], told["value"]["kind"]) == ("expired", "text")


def test_dead_letters_show_what_their_handler_has_made_of_them(retryapp, shop):
    """By their place on the topic as it is now, which tells two letters of a record apart."""
    shop.bury(0, 1)
    shop.bury(0, 1, replays=1)
    shop.bury(1, 2)
    shop.bury(2, 3)
    shown = retryapp("dead", "list", *shop.place, "--json").json["records"]
    assert {record["mark"] for record in shown} == {None}, "there is no handler of dead letters"
    topology = shop.topology
    letters = HandlerTopology(topology.group, topology.dlq, drop=True, letters_of=topology.main)
    admin = KafkaAdmin(KafkaConnection(shop.operator.bootstrap))
    ensure_topics(admin, [topology, letters])

    def mark(kind: str, partition: int, offset: int, of: str) -> None:
        facts = {"failure_id": of, "delivery": 1, "replays": 0, "command": ""}
        told = LetterMark(mark=MarkKind(kind), letter=offset, **facts).to_record(topology.dlq, partition)
        shop.publish(told.topic, partition, told.key, told.value, told.headers)

    mark("handled", 0, 0, shop.failure_id(0, 1))
    mark("failed", 0, 1, shop.failure_id(0, 1))
    mark("skipped", 1, 0, shop.failure_id(1, 2))
    shop.publish(topology.dlq, 2, b"k", b"{}", (("retry-mark", b"handled"),))
    shown = retryapp("dead", "list", *shop.place, "--topic", topology.main, "--json").json["records"]
    assert {(record["partition"], record["offset"]): record["mark"] for record in shown} == {
        (0, 0): "handled", (0, 1): "failed", (1, 0): "skipped", (2, 0): None,
    }  # fmt: skip
    listed = retryapp("dead", "list", *shop.place, "--topic", topology.main).out
    assert "4 of 4 dead letters: 3 still dead, 1 handled\n" in listed, "as `top` counts"
    assert ": 0 still dead" not in retryapp("dead", "list", *shop.place, "--topic", topology.main, "--partition", 1).out
    told = retryapp("dead", "show", "--broker", shop.operator.bootstrap, shop.failure_id(0, 1), "--json").json
    assert told["mark"] == "failed", "the last letter of this record"
    ledger = retryapp("ledger", *shop.place, "--topic", letters.main, "--json").json
    assert ledger["handlers"][0]["main"] == letters.main, "a handler without dead letters is found without its app"
    assert ledger["handlers"][0]["missing_topics"] == [], "a handler of dead letters never has any"


def test_groups_that_begin_alike_are_kept_apart(retryapp, shop):
    """Group ``shop`` is not group ``shop.eu``, although its topics begin like it: the owner mark tells.

    A mistyped group is an environment error that names those that are like it, and nothing is created.
    """
    shop.wait(0, 1, FAR_MS)
    outer = shop.topology.group.removesuffix(".eu")
    done = retryapp("pending", "list", "--broker", shop.operator.bootstrap, "--group", outer, "--json")
    assert done.code == 3
    assert f"group {outer!r} has no handlers on" in done.json["error"]["message"]
    group = f"{shop.topology.group}x"
    near = retryapp("dead", "list", "--broker", shop.operator.bootstrap, "--group", group, "--topic", "no-main")
    assert near.code == 3
    assert f"group {group!r} has no handlers on" in near.err
    assert re.search(f"Groups that have some: .*{re.escape(shop.topology.group)}(, |$)", near.err, re.MULTILINE)
    assert not [name for name in KafkaAdmin(shop.operator.connection).topic_names() if name.startswith(group)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pending", "list"], "--broker"),
        (["dead", "list", "-A", "x", "--broker", "b"], "--broker"),
        (["pending", "show", "nonsense", "--broker", "127.0.0.1:1"], "no failure id"),
        (["pending", "show", "g/t@abcdefgh/0/1"], "-A MODULE"),
        (["pending", "list", "--broker", "b", "--group", "g", "--since", "10"], "10"),
        (
            ["pending", "list", "--broker", "b", "--group", "g", "--since", "2030-01-02", "--until", "2030-01-01"],
            "--since 2030-01-02 00:00:00.000 UTC is not before --until 2030-01-01 00:00:00.000 UTC: nothing fits",
        ),
        (
            ["dead", "replay", "--broker", "b", "--group", "g", "--since", "1h", "--until", "2h"],
            "is not before --until",
        ),
        (["pending", "list", "-A", "no_such_module"], "no_such_module"),
        (["plan", "-A", ":app"], "no module is named"),
        (
            ["dead", "list", "--broker", "x:1", "--group", "g", "--cause", "84d7d8825632"],
            "expected an id as lists show it",
        ),
        (["dead", "list", "--broker", "x:1", "--group", "g", "--cause", "other"], "expected an id as lists show it"),
        (["plan", "-A", "./billing.py"], "-A ./billing.py: that is a path, and a module is needed. Give billing in"),
        (["top", "--once"], "-A MODULE[:APP], --broker HOST:PORT with --group NAME, or --url"),
        (["top", "--url", "http://[::1"], "'--url': 'http://[::1': expected the address of a worker's pages"),
        (["top", "--url", ""], "'--url': '': expected the address of a worker's pages"),
        (["ledger", "--broker", "kafka://b:1", "--group", "g"], "'kafka://b:1': expected HOST:PORT, as localhost:9092"),
        (["ledger", "--broker", "b:port", "--group", "g"], "'--broker': 'b:port': expected HOST:PORT"),
        (["ledger", "--broker", "", "--group", "g"], "'--broker': '': expected HOST:PORT"),
        (["handler", "pause", "--why", "\udcff"], "'--why': '\\udcff' is no text in UTF-8"),
        (["doctor"], "--app"),
    ],
)
def test_wrong_usage_ends_with_2(retryapp, arguments, message):
    """One line that names the option or value, before any broker is asked."""
    done = retryapp(*arguments)
    assert done.code == 2
    assert message in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("words", [("dead", "show"), ("pending", "show"), ("dead", "replay")])
def test_a_failure_id_of_another_group_is_refused(retryapp, module: str, words: tuple[str, ...]):
    """With -A of an app that has not made it: its topics are none of that app's to create."""
    done = retryapp(*words, "-A", module, "shipping/orders@kq8G0bTz/0/1")
    assert done.code == 2
    assert f"is of group shipping, and -A {module} is group {module}: give -A its app" in done.err


@pytest.mark.parametrize("words", [("dead", "show"), ("pending", "show"), ("dead", "replay"), ("pending", "cancel")])
def test_a_failure_id_of_no_handler_is_refused(retryapp, shop, module: str, words: tuple[str, ...]):
    """A mistyped topic is named, and no topic of ours is advised to be created; one whose topics are there is found."""
    group = shop.topology.group
    done = retryapp(*words, "--broker", shop.operator.bootstrap, f"{group}/no-main@kq8G0bTz/0/1")
    assert done.code == 2
    assert f"group {group} has no handler of topic no-main on" in done.err
    done = retryapp(*words, "-A", module, f"{module}/no-main@kq8G0bTz/0/1")
    assert (done.code, f"group {module} has no handler of topic no-main on" in done.err) == (2, True)
    assert "reate" not in done.err
    assert retryapp("dead", "show", *shop.place[:2], f"{group}/{shop.topology.main}@kq8G0bTz/0/1").code == 1


def test_client_properties_come_from_a_file(retryapp, shop, tmp_path: Path):
    """Comments and spaces pass; a wrong property or line is named, a value never."""
    good = tmp_path / "good.properties"
    good.write_text("# ours\nclient.id = me\n\n")
    assert retryapp("dead", "list", *shop.place, "--client-config", good).code == 0
    wrong = tmp_path / "wrong.properties"
    for text, name in (("sasl.passwort=geheim", "sasl.passwort"), ("geheim", "line 1")):
        wrong.write_text(f"{text}\n")
        done = retryapp("dead", "list", *shop.place, "--client-config", wrong)
        assert done.code == 2
        assert name in done.err
        assert "geheim" not in done.err


def test_a_misspelt_main_topic_is_answered_with_those_that_there_are(retryapp, shop):
    """A rightly spelt one passes, and nothing is created."""
    assert retryapp("dead", "list", *shop.place, "--topic", shop.topology.main).code == 0
    wrong = shop.topology.main[:-1]
    done = retryapp("dead", "list", *shop.place, "--topic", wrong)
    assert done.code == 2
    assert f"--topic {wrong}: no handler of that topic was found" in done.err
    assert f"There are: {shop.topology.main}" in done.err
    assert "reate" not in done.err

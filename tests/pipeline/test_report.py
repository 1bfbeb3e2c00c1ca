"""The page: everything in it, nothing from outside, and no text of a record that is more than text."""

from __future__ import annotations

import re
import shlex
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pages import DAY_MS, EVIL, MINUTE_MS, NOON_MS, facts

from retryapp.cli.console import ExitCode
from retryapp.cli.main import run
from retryapp.kafka import admin
from retryapp.pipeline.report.charts import MARKERS
from retryapp.pipeline.report.facts import build
from retryapp.pipeline.report.page import to_page

LARGEST = 1 << 20


class Elements(HTMLParser):
    """Collects what a browser would make of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_text_of_records_stays_text() -> None:
    """An error message that closes a script, opens another and an image, in tables and in charts."""
    found = Elements(to_page(facts(text=EVIL)))
    names = {tag for tag, _ in found.tags}
    assert not names & {"script", "img", "iframe", "object", "link", "base", "form"}
    assert not [name for _, attributes in found.tags for name in attributes if name.startswith("on")]
    assert EVIL in "".join(found.text), "it is shown as it was"
    assert {tag for tag, _ in Elements(to_page(facts())).tags} == names, "it adds no element"


def test_the_page_asks_nobody() -> None:
    """No address in any attribute or style, and a policy that would refuse it."""
    page = to_page(facts(text="https://example.org/x"))
    found = Elements(page)
    asking = {"src", "href", "xlink:href", "data", "action", "poster", "srcset"}
    assert [attributes for _, attributes in found.tags if asking & set(attributes)] == []
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.S)
    assert "url(" not in style
    assert "@import" not in style
    policies = [attributes["content"] for tag, attributes in found.tags if attributes.get("http-equiv")]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_charts_follow_the_readers_theme() -> None:
    """Their colours are the page's variables, each of which the page defines for light and for dark."""
    page = to_page(facts())
    assert page.count("<svg") == 3
    assert not [marker for marker in MARKERS.values() if marker in page.lower()]
    used = set(re.findall(r"var\(--([\w-]+)\)", page))
    light, dark = re.findall(r":root \{(.*?)\}", page, re.S)
    for theme in (light, dark):
        assert used <= set(re.findall(r"--([\w-]+):", theme))


def test_size() -> None:
    """Every table as long as it may be, every message as long as core lets it be; what is lost is not cut off."""
    long = "x" * 1_024
    full = facts(text=long)
    cause = full["causes"][0] | {"examples": [{"failure_id": "f" * 300, "message": long}] * 3}
    tables = {name: full[name][:1] * 20 for name in ("offenders", "outages")}
    ledger = full["ledger"][:1] * 3_999 + [full["ledger"][0] | {"partition": 4_711, "lost": 1}]
    shown = facts(causes=[cause] * 20, ledger=ledger, **tables)
    page = to_page(shown)
    assert len(page.encode()) < LARGEST
    assert (shown["ledger"][0]["partition"], shown["totals"]["lost"]) == (4_711, 1)
    assert "20 of 4,000 partitions" in page


def test_what_deserves_action_comes_first() -> None:
    """Failed checks, what will be gone tomorrow, the outage that goes on, with how it differs; warnings last."""
    shown = facts()
    levels = [entry["level"] for entry in shown["todo"]]
    assert levels == sorted(levels, key=["act", "look", "know"].index)
    titles = [entry["title"] for entry in shown["todo"]]
    assert titles[:3] == [
        "Check failed: no attempt was early",
        "billing.orders.dlq loses 37 dead letters within 24 hours",
        "Possible outage: PaymentsDown",
    ]
    assert titles[-1] == "Warning: records can be read"
    text = shown["todo"][2]["text"]
    assert "87% of the first deliveries from orders fail (2% before): 1,840 records" in text
    page = to_page(shown)
    places = [page.index(f'<section id="{name}">') for name in ("todo", "causes", "outages", "retention", "ledger")]
    assert places == sorted(places)


def test_every_command_that_the_page_names_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It fails of its broker only, with the login of the analysis: advice that cannot be followed is none."""
    monkeypatch.setattr(admin, "REACH_S", 0.2)
    (login := tmp_path / "a login").touch()
    named = [
        words
        for entry in facts(client_config=str(login))["todo"]
        for text in (entry["text"], entry["command"] or "")
        for words in re.findall(r"retryapp ((?:[a-z]+ )+(?:[^']|'[^']*')*)", text)
    ]
    assert {"dead list", "dead replay", "dead show", "pending list"} <= {" ".join(words.split()[:2]) for words in named}
    for words in named:
        assert run(shlex.split(words)) == ExitCode.ENVIRONMENT, words
        assert f"--client-config '{login}'" in words


def test_nothing_to_do() -> None:
    """A group in which nothing ever failed has a page too, and it says so."""
    names = "causes outages offenders timeline retention lateness cost checks funnel ledger"
    empty = facts(**{name: [] for name in names.split()})
    assert empty["todo"] == []
    assert empty["headline"] == "0 records failed: 0 recovered, 0 waiting, 0 dead"
    page = to_page(empty)
    assert "Nothing: all checks hold" in page
    assert "<svg" not in page


def test_causes_say_what_has_changed() -> None:
    """What came back is first; what is ignored or resolved is listed, and nothing to do."""
    first, second, third, fourth, *_ = facts()["causes"]
    changed = [
        first | {"decision": "ignored", "who": "ann", "note": "known"},
        second | {"decision": "resolved", "who": "ann"},
        third | {"decision": "resolved", "who": "bob", "decided_ms": NOON_MS - 3 * DAY_MS, "change": "regressed"},
        fourth | {"change": "more", "before": 7},
    ]
    shown = facts(causes=changed)
    entries = [entry for entry in shown["todo"] if " dead record" in entry["title"] or "Came back" in entry["title"]]
    entries = [entry for entry in entries if "Keys" not in entry["title"]]
    assert len(entries) == 2
    assert entries[0]["title"].startswith("Came back: ValidationError")
    assert "bob resolved it on 2030-03-14. " in entries[0]["text"]
    assert "In the time before: 7. " in entries[1]["text"]
    page = to_page(shown)
    assert "ignored by ann: known" in page
    assert page.count('class="mark regressed"') == 1


def test_what_came_back_and_has_not_killed_yet_names_no_dead_letter() -> None:
    """Its records wait: 'dead show' would find none of them."""
    cause = facts()["causes"][0] | {"decision": "resolved", "who": "bob", "decided_ms": NOON_MS, "change": "regressed"}
    found = facts(causes=[cause | {"letters": 0, "reason": None}])["todo"]
    (entry,) = [each for each in found if each["title"].startswith("Came back")]
    assert entry["command"].startswith("retryapp pending list --broker")
    assert ("its records wait" in entry["text"], "Dead letters" in entry["text"]) == (True, False)


def test_a_deadly_cause_has_a_name_a_remedy_and_its_newest_dead_letter() -> None:
    """By reason; the name is cut, however long the message is."""
    text = f"no plane 17\n{'x ' * 499}"
    shown = facts(text=text)
    first = shown["causes"][0]
    entries = [
        entry
        for cause in (first, first | {"reason": "rejected", "letters": 1})
        for entry in facts(causes=[cause], text=text)["todo"]
        if " dead record" in entry["title"] and "Keys" not in entry["title"]
    ]
    assert [entry["title"] for entry in entries] == [
        f"{dead}: PaymentsDown: no plane <number> {'x ' * 13}…"
        for dead in ("300 dead records, exhausted", "1 dead record, rejected")
    ]
    assert "Fix what fails" in entries[0]["text"]
    assert "Fix the producer" in entries[1]["text"]
    assert all("stay on their topic until its retention ends" in entry["text"] for entry in entries)
    command = "retryapp dead show billing/orders@kq8G0bTz/0/0 --broker kafka-1:9092"
    assert [entry["command"] for entry in entries] == [command] * 2
    words = "--cause c1-0000000000 --why TEXT --broker kafka-1:9092 --group billing --topic orders"
    brings_back = f"This brings them back once it is mended: 'retryapp dead replay {words}'."
    assert all(brings_back in entry["text"] for entry in entries)
    page = to_page(shown)
    assert f"<strong>{escape(first['template'])}</strong>" in page
    assert "x x x" in page.split("examples</summary>")[1], "the message as it was is an example"


@pytest.mark.parametrize("reason", ["crashed", "damaged", "gone", "too-large"])
def test_what_no_job_replays_is_not_said_to_come_back(reason: str) -> None:
    """What has no value, or could not be read, stays dead; what ended its workers is replayed alone."""
    first = facts()["causes"][0] | {"reason": reason}
    (entry,) = [each for each in facts(causes=[first])["todo"] if each["title"].startswith("300 dead records")]
    alone = "'retryapp dead replay billing/orders@kq8G0bTz/0/0 --force --broker kafka-1:9092'"
    assert [words in entry["text"] for words in ("--cause", alone)] == [False, reason == "crashed"]
    replayed = shlex.split(alone.strip("'"))[1:]
    with pytest.MonkeyPatch.context() as impatient:
        impatient.setattr(admin, "REACH_S", 0.2)
        assert run(replayed) == ExitCode.ENVIRONMENT, "it fails of its broker only"


def test_what_was_discarded_is_nothing_to_do() -> None:
    """Somebody has settled it, or its handler keeps no dead letters: there is none to show or to replay."""
    cause = facts()["causes"][0] | {"letters": 0}
    shown = facts(causes=[cause], checks=[], retention=[], outages=[], offenders=[])
    assert (shown["todo"], shown["totals"]["dead"]) == ([], 431)
    page = to_page(shown)
    assert "Nothing: all checks hold, and no retention is near." in page


def test_a_cause_that_came_back_has_the_colour_that_the_facts_gave_it() -> None:
    """It is drawn before deadlier ones: the legend is of the causes of the time line, and of no others."""
    drawn = ["f6f6f6", "f0f0f0", "f1f1f1", "f2f2f2", "f3f3f3"]
    rows = [
        {"fingerprint": fingerprint, "from_ms": NOON_MS, "length_ms": MINUTE_MS, "failures": 5}
        for fingerprint in (*drawn, None)
    ]
    shown = facts(timeline=rows)
    picture = to_page(shown).split('aria-label="Failed attempts over time by cause"')[1].split("</figure>")[0]
    legend = {row["fingerprint"] for row in shown["causes"] if row["cause_id"][-6:] in picture}
    assert legend == set(drawn)
    assert all(f"var(--c{number})" in picture for number in range(1, 6))


def test_failures_that_are_not_drawn_are_counted() -> None:
    """The time line leaves out what a wrong clock dated years away."""
    whole = facts()
    drawn = sum(row["failures"] for row in whole["timeline"])
    pages = [to_page(facts(in_all={**whole["in_all"], "failures": drawn + more})) for more in (0, 1_200)]
    assert ["1,200 failed attempts are not drawn" in page for page in pages] == [False, True]


def test_a_chart_has_a_bar_for_each_cause() -> None:
    """Rows of one cause, for each reason, are one bar and one colour, whatever else has its name."""
    shown = facts()
    first, second = shown["causes"][:2]
    parted = [first, second, first | {"reason": None, "dead": 0, "recovered": 7}]
    page = to_page(facts(causes=parted))
    names = [escape(f"{first['template']} {cause['cause_id'][-6:]}") for cause in (first, second)]
    bars = page.split('aria-label="Records by cause and fate"')[1].split("</svg>")[0]
    assert [bars.count(f">{name}</text>") for name in names] == [1, 1]


@pytest.mark.parametrize(
    ("handlers", "names"),
    [
        ([("billing", "orders"), ("domain", "orders")], ["billing: orders", "domain: orders"]),
        ([("billing", "a.long.name.orders.v1"), ("billing", "a.long.name.refunds.v1")],
         ["a.long.name.orders.v1", "a.long.name.refunds.v1"]),
    ],
)  # fmt: skip
def test_two_handlers_are_told_apart(handlers: list[tuple[str, str]], names: list[str]) -> None:
    """In charts, whose bars of one name would be added up, and in tables."""
    one = facts()
    both = {
        table: [row | {"group": group, "main": main} for group, main in handlers for row in one[table]]
        for table in ("funnel", "lateness")
    }
    page = to_page(facts(groups=list(dict(handlers)), **both))
    for name in names:
        assert page.count(f">{name}: attempt 2 after 1m</text>") == 1
        assert f'<span class="soft">{name}</span>' in page


def test_of_a_topic_that_was_deleted_nothing_is_replayed() -> None:
    """No command would find its dead letters."""
    shown = facts(retention=[facts()["retention"][0] | {"was_deleted": True, "within_day": 0, "within_week": 0}])
    assert not [entry for entry in shown["todo"] if "retryapp dead" in f"{entry['text']} {entry['command']}"]
    assert [entry for entry in shown["todo"] if "only the archive has these" in entry["text"]]
    assert "was deleted" in to_page(shown)


def test_keys_beyond_those_shown_are_not_denied() -> None:
    """The page has 20 of them at most."""
    (entry,) = [entry for entry in facts()["todo"] if "Keys with" in entry["title"]]
    assert entry["text"].startswith("3 keys have")
    assert entry["command"] == "retryapp dead show billing/orders@kq8G0bTz/0/0 --broker kafka-1:9092"
    many = facts(in_all={**facts()["in_all"], "offenders": 1_400, "deadly_keys": 784})
    assert next(e["text"] for e in many["todo"] if "Keys with" in e["title"]).startswith("784 keys have")


def test_what_workers_did_not_tell_is_taken_from_the_topics_or_said() -> None:
    """Where ranges have holes, the sums are those of the other count, or are called inexact."""
    whole = facts()["ledger"]
    holes = [whole[0] | {"from_offset": 30_000, "received": 20_000}, whole[1]]
    tables = {name: value for name, value in facts(ledger=holes).items() if name not in {"totals", "headline", "todo"}}
    counted = {"received": 100_000, "first_try_ok": 98_000, "done": 99_680}
    low, mended = build(tables, tables["cost"]), build(tables, tables["cost"], counted)
    assert (low["counted_by"], low["totals"]["received"]) == ("workers, with holes", 70_000)
    assert "not exact" in to_page(low)
    assert (mended["counted_by"], mended["totals"]["received"]) == ("topics", 100_000)
    assert "counted from the topics" in to_page(mended)
    mended = build({**tables, "ledger": whole}, tables["cost"], {**counted, "received": 1})
    assert mended["totals"]["received"] == 100_000
    assert "counted from" not in to_page(facts())


def test_half_a_surrogate_is_written() -> None:
    """Text that no encoding has, as a name that was not UTF-8 may leave it."""
    assert "\\ud800" in to_page(facts(text="\ud800"))

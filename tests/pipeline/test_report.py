"""The page: everything in it, nothing from outside, and no text of a record that is more than text."""

from __future__ import annotations

import re
import shlex
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pages import DAY_MS, EVIL, MINUTE_MS, NOON_MS, facts

from retryapp.cli.console import ExitCode
from retryapp.cli.main import run
from retryapp.kafka import admin
from retryapp.pipeline.report.charts import MARKERS
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


def test_text_of_records_stays_text_and_the_page_loads_nothing() -> None:
    """An error message that closes a script, opens another and an image, in tables and in charts.

    No address is in an attribute or style, and a policy would refuse it.
    """
    page = to_page(facts(text=EVIL))
    found = Elements(page)
    names, attributes = {tag for tag, _ in found.tags}, {name for _, each in found.tags for name in each}
    assert not names & {"script", "img", "iframe", "object", "link", "base", "form"}
    assert not [name for name in attributes if name.startswith("on")]
    assert not attributes & {"src", "href", "xlink:href", "data", "action", "poster", "srcset"}
    assert EVIL in "".join(found.text), "it is shown as it was"
    assert {tag for tag, _ in Elements(to_page(facts())).tags} == names, "it adds no element"
    assert "caf\\udce9" in to_page(facts(client_config="caf\udce9")), "a name that is no UTF-8 can be written"
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
    (keys,) = [entry for entry in shown["todo"] if "Keys with" in entry["title"]]
    assert keys["text"].startswith("784 keys have"), "of all, not of those that are shown"
    assert keys["command"] == "retryapp dead show billing/orders@kq8G0bTz/0/0 --broker kafka-1:9092"
    text = shown["todo"][2]["text"]
    assert "87% of the first deliveries from orders fail (2% before): 1,840 records" in text
    page = to_page(shown)
    places = [page.index(f'<section id="{name}">') for name in ("todo", "causes", "outages", "retention", "ledger")]
    assert places == sorted(places)


def entries(words: str, /, **changes: Any) -> list[dict[str, Any]]:
    """Return what there is to do with these words in its title, of facts that are changed so."""
    return [entry for entry in facts(**changes)["todo"] if words in entry["title"] and "Keys" not in entry["title"]]


def cause(**changes: Any) -> dict[str, Any]:
    """Return the first cause, changed so."""
    return {**facts()["causes"][0], **changes}


def test_every_command_that_the_page_names_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It fails of its broker only, with the login of the analysis: advice that cannot be followed is none."""
    monkeypatch.setattr(admin, "REACH_S", 0.2)
    (login := tmp_path / "a login").touch()
    causes = [*facts()["causes"], cause(fingerprint="last", reason="crashed", dead=10_000)]
    named = [
        words
        for entry in facts(client_config=str(login), causes=causes)["todo"]
        for text in (entry["text"], entry["command"] or "")
        for words in re.findall(r"retryapp ((?:[a-z]+ )+(?:[^']|'[^']*')*)", text)
    ]
    assert {"dead list", "dead replay", "dead show", "pending list"} <= {" ".join(words.split()[:2]) for words in named}
    assert any(" --force " in words for words in named)
    for words in named:
        assert run(shlex.split(words)) == ExitCode.ENVIRONMENT, words
        assert f"--client-config '{login}'" in words


def test_nothing_to_do() -> None:
    """A group in which nothing ever failed has a page too, and it says so.

    So is what was discarded: somebody has settled it, or its handler keeps no dead letters: none to show or to replay.
    """
    names = "causes outages offenders timeline retention lateness cost checks funnel ledger"
    empty = facts(**{name: [] for name in names.split()})
    assert empty["headline"] == "0 records failed: 0 recovered, 0 waiting, 0 dead"
    assert "<svg" not in to_page(empty)
    settled = facts(causes=[cause(dead=0, discarded=300)], checks=[], retention=[], outages=[], offenders=[])
    assert settled["totals"]["dead"] == 431
    for shown in (empty, settled):
        assert shown["todo"] == []
        assert "Nothing: all checks hold, and no retention is near." in to_page(shown)


def test_of_a_cause_what_was_discarded_is_apart_from_what_is_dead() -> None:
    """As in the headline; only what is dead is to be looked at."""
    shown = facts(causes=[cause(dead=7, discarded=4_321)])
    titles = [entry["title"] for entry in shown["todo"]]
    assert [title for title in titles if title.startswith("7 dead records")], titles
    assert '<td class="n bad">7</td><td class="n">4,321</td>' in to_page(shown)


def test_causes_say_what_has_changed() -> None:
    """What came back is first; what is ignored or resolved is listed, and nothing to do."""
    first, second, third, fourth, *_ = facts()["causes"]
    changed = [
        first | {"decision": "ignored", "who": "ann", "note": "known"},
        second | {"decision": "resolved", "who": "ann"},
        third | {"decision": "resolved", "who": "bob", "decided_ms": NOON_MS - 3 * DAY_MS, "change": "regressed"},
        fourth | {"change": "more", "before": 7},
    ]
    (back,), (more,) = (entries(words, causes=changed) for words in ("Came back", " dead record"))
    assert back["title"].startswith("Came back: ValidationError")
    assert "bob resolved it on 2030-03-14. " in back["text"]
    assert "In the time before: 7. " in more["text"]
    page = to_page(facts(causes=changed))
    assert "ignored by ann: known" in page
    assert page.count('class="mark regressed"') == 1
    waits = cause(decision="resolved", who="bob", decided_ms=NOON_MS, change="regressed", dead=0, reason=None)
    (entry,) = entries("Came back", causes=[waits])
    assert entry["command"].startswith("retryapp pending list --broker"), "'dead show' would find none of them"
    assert ("its records wait" in entry["text"], "Dead letters" in entry["text"]) == (True, False)


def test_a_deadly_cause_has_a_name_a_remedy_and_its_newest_dead_letter() -> None:
    """By reason; the name is cut, however long the message is."""
    text = f"no plane 17\n{'x ' * 499}"
    shown = facts(text=text)
    first = shown["causes"][0]
    by_reason = [first, first | {"reason": "rejected", "dead": 1}]
    exhausted, rejected = (entries(" dead record", causes=[each])[0] for each in by_reason)
    name = f"PaymentsDown: no plane <number> {'x ' * 13}…"
    assert exhausted["title"] == f"300 dead records, exhausted: {name}"
    assert rejected["title"] == f"1 dead record, rejected: {name}"
    assert "Fix what fails" in exhausted["text"]
    assert "Fix the producer" in rejected["text"]
    words = "--cause c1-0000000000 --why TEXT --broker kafka-1:9092 --group billing --topic orders"
    for entry in (exhausted, rejected):
        assert "stay on their topic until its retention ends" in entry["text"]
        assert entry["command"] == "retryapp dead show billing/orders@kq8G0bTz/0/0 --broker kafka-1:9092"
        assert f"This brings them back once it is mended: 'retryapp dead replay {words}'." in entry["text"]
    page = to_page(shown)
    assert f"<strong>{escape(first['template'])}</strong>" in page
    assert "x x x" in page.split("examples</summary>")[1], "the message as it was is an example"


@pytest.mark.parametrize("reason", ["crashed", "damaged", "gone", "too-large"])
def test_what_no_job_replays_is_not_said_to_come_back(reason: str) -> None:
    """What has no value, or could not be read, stays dead; what ended its workers is replayed alone."""
    (entry,) = entries("300 dead records", causes=[cause(reason=reason)])
    alone = "'retryapp dead replay billing/orders@kq8G0bTz/0/0 --force --broker kafka-1:9092'"
    assert [words in entry["text"] for words in ("--cause", alone)] == [False, reason == "crashed"]


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


def test_where_counts_of_workers_are_missing_the_page_says_so() -> None:
    """As where offsets were set by hand."""
    whole = facts()["ledger"]
    holes = facts(ledger=[whole[0] | {"from_offset": 30_000, "received": 20_000}, whole[1]])
    assert (holes["counted_by"], holes["totals"]["received"]) == ("workers, with holes", 70_000)
    assert ["not exact" in to_page(each) for each in (holes, facts())] == [True, False]

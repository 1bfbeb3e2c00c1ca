"""Parameters of a request: what is taken and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from multidict import MultiDict
from samples import key_of, waiting_row

from retryapp.core.jobs import LetterFilter
from retryapp.web.errors import PageError
from retryapp.web.query import Place, Question, place_text, question_of


def test_no_parameters_are_the_defaults() -> None:
    """Empty ones, as an untouched form sends them, count as absent."""
    form = {"partition": "", "reason": "", "after": "", "limit": ""}
    assert question_of({}) == Question() == replace(question_of(form), query={})


def test_all_parameters_are_read() -> None:
    key = key_of(waiting_row(3))
    asked = {"format": "json", "limit": "7", "partition": "0", "reason": "expired", "after": key.hex(), "routed": "1"}
    question = question_of(asked, {"main": "orders"}, "/retries/orders/dead")
    assert question == Question(
        path="/retries/orders/dead", main="orders", query=asked,
        as_json=True, limit=7, partition=0, wanted=LetterFilter(reason="expired"), after=key, routed=True,
    )  # fmt: skip
    assert question.address(limit="8").startswith("/retries/orders/dead?format=json&limit=8&")
    assert "routed" not in question.address()


NAMES = st.just("") | st.from_regex(r"\A[A-Za-z0-9_-]{1,20}\Z")


@given(st.tuples(st.integers(0, 2**45), st.integers(0, 10**9), NAMES, st.integers(0, 2**62)))
def test_a_cursor_of_dead_letters_reads_back(place: Place) -> None:
    """What the link to the next page says is what is asked, also of topics of rules."""
    assert question_of({"before": place_text(place)}).before == place


@example("since", "0001-01-01T00:00")
@given(
    st.sampled_from(["limit", "partition", "after", "before", "refresh", "format", "since", "until", "seen"]),
    st.text(min_size=1),
)
def test_nonsense_is_refused_by_name_and_never_crashes(name: str, text: str) -> None:
    """Any text is either taken or answered with 400."""
    refusals: list[PageError] = []
    try:
        question_of({name: text})
    except PageError as error:
        refusals.append(error)
    assert all(refusal.status == 400 and name in refusal.message for refusal in refusals)


@pytest.mark.parametrize("text", ["yesterday", "9999999d"])
def test_a_time_that_cannot_be_read_is_refused_with_what_can(text: str) -> None:
    """Its hint began with the text itself."""
    with pytest.raises(PageError) as error:
        question_of({"since": text})
    assert error.value.hint == "Expected a length with a unit ('10m') or UTC ('2030-01-31T12:00')"


@pytest.mark.parametrize(("name", "example"), [("field", "/customer/id=17"), ("header", "tenant=acme")])
def test_a_filter_that_cannot_be_read_is_refused_with_an_example(name: str, example: str) -> None:
    """Its hint was the pattern that checks it."""
    with pytest.raises(PageError) as error:
        question_of({name: "customer"})
    assert f", as {example}" in error.value.hint
    assert question_of({name: example}).wanted != LetterFilter()


@pytest.mark.parametrize("text", ["c1-3f9c", "3f9ca81b02", "C1-3F9CA81B02", "ConnectionError"])
def test_a_cause_that_is_no_id_is_refused(text: str) -> None:
    """A list of it said that there were no such letters, as if their cause were gone."""
    with pytest.raises(PageError, match=f"cause='{text}'") as error:
        question_of({"cause": text})
    assert error.value.hint == "Expected an id as lists show it, c1-3f9ca81b02"
    known = ["c1-3f9ca81b02", "other"]
    assert [question_of({"cause": each}).wanted.cause for each in known] == known


def test_of_a_parameter_that_is_sent_twice_one_counts_everywhere() -> None:
    """The filter was that of one, and what other workers and the next page were asked of the other."""
    twice = MultiDict([("key", "k1"), ("limit", "7"), ("key", ""), ("limit", "8")])
    question = question_of(twice)
    assert (question.wanted.key, question.limit) == ("k1", 8)
    assert question.list_address("dead", 8) == "dead?key=k1&limit=8"


@pytest.mark.parametrize("text", ["0", "no", "false", "true", "11"])
def test_a_yes_is_a_one(text: str) -> None:
    """`marked=0` was taken for a yes."""
    assert (question_of({"marked": "1"}).marked, question_of({"marked": ""}).marked) == (True, False)
    with pytest.raises(PageError, match=f"marked='{text}'") as error:
        question_of({"marked": text})
    assert error.value.hint == "Expected 1, or no such parameter"


@pytest.mark.parametrize("text", ["0", "-1", "501", "1.5", "\u0662", "1e2", "9" * 40])
def test_a_page_size_out_of_range_is_refused(text: str) -> None:
    """Bounded work for every request."""
    with pytest.raises(PageError, match="limit"):
        question_of({"limit": text})

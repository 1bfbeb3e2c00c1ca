"""Histories in which the simulation has found something, each as small as it gets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import pytest

from retryapp.core.control import Command, Verb
from retryapp.ports import TopicPartition
from simulation import History, Plan
from simulation.drawing import draw_plan
from simulation.faults import Fault
from simulation.lanes import SimLane

FOUND = {
    2039192: "What was given up has replaced what waited. "
    "The judge took the one that it had replaced for the newest of its key.",
    12041130: "A lane that takes a new producer knows what it knew. "
    "The judge took that for an opening: a release that waited for its topic was not known, and its record began.",
    14365410: "A newest record whose row is damaged has replaced what waited. "
    "The letter of its row hides its key, so the judge took the one that it had replaced for the newest of its key.",
    14589951: "A replay by force runs after what may have replaced it. "
    "Where its lane was opened anew, the judge took that for a row which a newer record should have removed.",
    3182041: "A duplicate that waits for the offset has those behind it run again in an order. "
    "The judge expected that a drain leaves nothing to repeat; what goes ahead goes in order, and a skip does not.",
    16415573: "A row that has ended before the offset passes its record stays so. "
    "Its record was read again after a kill, with no row and no note, and began behind later ones of its key.",
    16416637: "A note of a record whose row goes on settles nothing. "
    "The judge took it for the end of that record, before which those of its partition that come again must begin.",
    16421414: "A record that comes again may end later than its script says. "
    "Its first attempt met an outage, so the second was its last; the judge waited for an end of the first.",
    20502630: "An edited value may fulfil the condition of a rule. "
    "The judge asked for the usual dead-letter topic, by the value that the record had before.",
    20647685: "A value that was edited names no record of the former topic. "
    "The judge tried to read a name from it, and its own error was taken for the record's failure.",
    20606721: "A newer record that is gone with its topic replaces nothing. "
    "It had no durable outcome, so what waited before it goes on; the judge took that for a row to be removed.",
    22428685: "A letter that ended its workers is passed where a replay of it is on its way. "
    "It was told as failed, without a mark: the table did not say yet that it was replayed.",
    4660033: "A claim that was held begins once its release is sent. "
    "The judge waited for the event of the release; the command is durable, and a crash leaves it to be obeyed.",
    20659998: "A letter whose row is damaged has no mark. "
    "The judge asked for one; nothing says any more whose letter it is.",
    18299500: "The marks of a job count before readers see them. "
    "Its end was visible first: on the dead-letter topic an older transaction was still open before its marks.",
    20857382: "A release of a record that somebody has given up is answered. "
    "The judge looked for its story; the engine took that error for a transaction that had failed.",
    22460561: "A record fails with the others of its list where that times out. "
    "The judge took the end of its own call for its failure, and the record for one that died too soon.",
    22976333: "A hold before the first failure is no part of the time until a record expires. "
    "The judge took the time of the hold off, and the record for one that died too soon.",
    18892788: "A letter that is restored since its handler's lane has opened begins. "
    "The judge went by what was durable at the opening: there it was discarded.",
    20292917: "A record may be replaced under a name of the former topic, which had none so far. "
    "The judge looked for its story before it had taken that name.",
    18088401: "A letter's mark may be taken back that the broker has acknowledged, as it stops. "
    "The judge asked for it, although the lane had heard of nothing since.",
    20159953: "The offset passes a record that comes again and was held before. "
    "The judge took its run for one of the held row, which it looked for in vain beside the next suspect.",
    20788568: "A retry of a replayed record may be due at the instant of one before its death. "
    "The handler had asked for that instant both times; the judge took the second run for the first one again.",
    2639872: "A lane that fails as its drain ends leaves nothing to release. "
    "The drain looked for its session before a step of the event loop, not after; its partition never opened again.",
    20587069: "A letter without a key is replayed without force: nothing replaces it. The judge asked for force.",
    22545827: "A record that comes again runs in the session in which its row has ended before. "
    "Its attempts were due at the same instants, which its handler names, since the clock was set back.",
    20134614: "What waits goes on where a command takes the newer one away that was to replace it. "
    "Its row was put aside for the session: of its key nothing was known any more.",
    12382626: "What ran behind a duplicate waits for the offset with it, in an order. "
    "The judge expected that it is durable before the next suspect runs.",
    20088734: "The newest record of a key may be cancelled when an older one comes again, its offset set back. "
    "The judge took the older one for replaced.",
    22914702: "A deadline counts none of the last ten pauses. "
    "Five were remembered, so a record that was paused and held again and again died too soon.",
    20540523: "A dead letter's row has the headers of its record, too, as foreign ones. "
    "The judge damaged one of those, and the row was sound.",
    22637341: "A record that ends its workers is found later where a dead letter ends some, too. "
    "The judge counted those of one handler alone.",
}
"""What each history has found, by its seed."""


def held(history: History) -> Counter[str]:
    """Run a history that breaks no rule; return what it has reached."""
    result = history.run()
    assert result.violation is None
    return result.reached


def test_a_dead_letter_that_the_broker_took_back_comes_again() -> None:
    """Its lane had nothing else to do, so nobody told it: the record was gone until somebody used the lane."""
    plan = Plan(
        records=((1.0, 0, "R"),),
        faults=(Fault(0.9, "broker stopped", 0, 0.05),),
    )
    reached = held(History(plan))
    assert (reached["a commit was taken back"], reached["dead"]) == (1, 2)


def test_a_clock_that_is_ahead_forgets_no_event() -> None:
    """A worker read which events were seen before it knew the broker's time: to it they had expired."""
    plan = Plan(
        workers=2,
        offsets_ms=(7_000_000.0, 0.0, 0.0),
        records=((1.0, 0, "S"),),
        faults=(Fault(3.0, "terminate", 1, 1.0),),
        repeats=((30.0, 0),),
    )
    reached = held(History(plan))
    assert (reached["skipped"], reached["lane_opened"] > 1) == (1, True)


def test_a_row_that_hangs_holds_its_record_back_where_the_broker_took_the_row_back() -> None:
    """It came again as a first delivery, which nobody took for the record that still ran."""
    plan = Plan(
        seed=597627940666,
        workers=2,
        offsets_ms=(6254371.941303395, -6667284.127032065, -479681.96053162776),
        records=((1.49, 0, "D"), (1.67, 0, "HHS"), (2.13, 0, "S")),
        faults=(Fault(2.13, "broker down", 0, 0.03), Fault(4.22, "broker stopped", 0, 0.22)),
    )
    assert held(History(plan))["a commit was taken back"] == 1


def test_a_partition_that_comes_back_finds_its_runs_that_still_go_on() -> None:
    """One that was given up went on, and the next of its key began beside it: its new assignment did not know of it."""
    plan = Plan(
        seed=2,
        records=((0.5, 0, "FFFH"), (0.51, 0, "S"), (0.52, 0, "S"), (0.53, 0, "S")),
        faults=(Fault(6.1, "members forgotten", 0, 0.5),),
        order="key",
    )
    assert held(History(plan))["lane_opened"] == 2


def test_a_worker_that_stopped_while_its_lane_opened_has_the_table_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge took rows for lost that the next owner had written: this one's first transaction is refused."""
    reposition = SimLane.reposition

    async def stop(lane: SimLane, starts: Mapping[TopicPartition, int]) -> None:
        monkeypatch.undo()
        await reposition(lane, starts)
        worker = lane.worker
        worker.process.stopped = True
        asyncio.get_running_loop().call_later(45.0, worker.process.cont, context=worker.wire.network.context)
        await asyncio.sleep(0)

    monkeypatch.setattr(SimLane, "reposition", stop)
    plan = Plan(
        workers=2,
        records=tuple((42.0 + at / 2, 0, "FFFFS") for at in range(8)),
        faults=(Fault(0.0, "pause", 1, 0.0),),  # lanes may fail
    )
    reached = held(History(plan))
    assert (reached["lane_opened"], reached["lane_failed"]) == (3, 1)


def test_a_list_that_raises_in_a_drain_runs_once_more() -> None:
    """Its records alone were to run next; they had no outcome yet, so the next owner called it with all of them."""
    assert held(History(draw_plan(3150632)))["a list of 3"] > 0


def test_a_time_of_a_broker_that_is_a_little_wrong_begins_nothing_early() -> None:
    """Where it contradicts what is known by less than a second, a lone acknowledgement was believed."""
    assert held(History(draw_plan(3040321)))["fault: wrong time"] > 0


def test_a_worker_does_not_forget_in_a_rebalance_that_its_main_topic_was_made_again() -> None:
    """Its next assignment read the new topic, and named the records like those of the former one."""
    history = History(draw_plan(20601202))
    assert history.run().violation is None
    copies = history.broker.visible(TopicPartition("sim.orders.retry", 0))
    named = [(dict(copy.headers)["retry-origin"] or b"", copy.value or b"") for copy in copies]
    assert {origin.startswith(b"orders@again1") for origin, value in named if value.startswith(b"0.1000")} == {True}


def test_a_record_that_comes_again_waits_beside_the_cap_where_rows_wait_for_it() -> None:
    """The judge took that for one too many: it goes before a row that was there when the offset was set back."""
    assert held(History(draw_plan(20428582)))["one came again before as many as may wait"] == 1


@pytest.mark.parametrize("seed", [12955550, 16486698])
def test_a_record_that_ends_its_workers_is_suspect_whichever_rows_go_first(seed: int) -> None:
    """Rows of other circuits, or the next of sequences, took the suspects' places in a life: it was trusted again."""
    assert History(draw_plan(seed)).run().violation is None


def test_a_restore_that_the_broker_takes_back_counts_where_it_was_acknowledged() -> None:
    """The judge went by the marks that readers see: the letter was discarded, and its row began when it was due."""
    plan = Plan(
        records=((0.5, 0, "R"),),
        faults=(Fault(2.6, "terminate", 0, 0.0), Fault(4.2, "broker stopped", 0, 0.1)),
        letters=("FFFS",),
        commands=(20.0,),
    )
    history = History(plan)

    def send(verb: Verb) -> None:
        assert history.first.oracle.steering is not None
        history.first.oracle.steering.asked[verb.value] = verb.value, (0, 0)
        tp = TopicPartition(history.first.topology.control, 0)
        command = Command(id=verb.value, verb=verb, failure_id="sim/orders@simulated/0/0")
        history.broker.append(tp, command.to_record(*tp))

    for at_s, verb in ((2.3, Verb.DISCARD), (4.2, Verb.RESTORE)):
        history.loop.call_later(at_s, send, verb, context=history.network.context)
    reached = held(history)
    assert reached["a commit was taken back"] == 1
    assert (reached["discard obeyed"], reached["restore refused"]) == (1, 1)  # it was handled meanwhile


def test_a_record_behind_many_outcomes_on_their_way_ends_few_workers() -> None:
    """In every second life one more of them was suspect and went well, and nothing counted against those behind it."""
    assert held(History(draw_plan(14897735)))["a handler ended its worker"] == 7


def test_a_store_is_rebuilt_in_less_than_half_the_time_that_removals_stay() -> None:
    """So small were the readings and so short the openings that it never was: each one after a wait began anew."""
    assert held(History(draw_plan(20892740)))["a store was too old"] > 0


@pytest.mark.parametrize("seed", FOUND)
def test_a_history_that_was_found_holds(seed: int) -> None:
    """Engine or judge was wrong in it."""
    assert History(draw_plan(seed)).run().violation is None, FOUND[seed]

"""Tells of a circuit that has changed its state: an event on the events topic, and an observation."""

from __future__ import annotations

from contextlib import suppress

from retryapp.core.circuit import Transition
from retryapp.core.lane_errors import LaneClosedError
from retryapp.core.lifecycle import CircuitChanged
from retryapp.engine.delivery.run import DeliveryContext
from retryapp.engine.lane.lane import Lane
from retryapp.engine.lane.turn import Turn, to_event
from retryapp.ports import Event, Observation


def tell(lane: Lane, session: int, context: DeliveryContext, partition: int, change: Transition, circuit: str) -> None:
    """Have the lane publish a change; it is news, no state, so a lane that closes meanwhile drops it."""
    handler = context.handler
    event = CircuitChanged(
        group=handler.group,
        handler=handler.name,
        main=handler.main,
        partition=partition,
        from_state=change.before,
        to_state=change.after,
        cause=change.cause,
        circuit=circuit,
        at_ms=context.clock.wall_ms(),
    )
    seen = Observation(
        event=Event.CIRCUIT,
        handler=handler.main,
        topic=handler.main,
        partition=partition,
        state=change.after,
        circuit=circuit,
        message=change.cause or None,
    )
    sent = to_event(event, topology=handler.topology, partition=partition)
    with suppress(LaneClosedError):
        lane.submit(session, Turn(publishes=(sent,), observations=(seen,), patient=True))

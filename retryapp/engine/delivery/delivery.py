"""What a handler takes: the delivery of its record, and where it publishes."""

from __future__ import annotations

from retryapp.core.foreign import strip
from retryapp.core.letters import read_letter
from retryapp.core.metadata import RELEASED
from retryapp.core.record import failure_id
from retryapp.engine.delivery.run import Run
from retryapp.engine.handler.handler import Delivery
from retryapp.engine.handler.publish import Outbox


def delivery_of(run: Run) -> Delivery:
    """Return the delivery of a run that has begun, for its handler."""
    if run.delivery is None:
        run.delivery = _delivery(run)
    return run.delivery


def _delivery(run: Run) -> Delivery:
    context, shown, metadata = run.context, run.shown, run.metadata
    if run.started_ms is None:  # asked for afterwards: few need it, and a wall clock costs more than a counter
        clock = context.clock
        run.started_ms = clock.wall_ms() - round((clock.monotonic_s() - run.started_s) * 1000)
    origin = run.origin
    failed = None if metadata is None or metadata.held else metadata
    letter = None if context.handler.topology.letters_of is None else read_letter(shown.headers)
    return Delivery(
        failure_id=failure_id(context.handler.group, origin),
        attempt=1 if metadata is None else metadata.attempt + 1,
        hot_attempt=run.hot_attempt,
        origin=origin,
        timestamp_ms=shown.timestamp_ms,
        key=shown.key,
        raw_value=shown.value,
        headers=shown.headers if letter is None else strip(shown.headers),
        letter=letter,
        due_at_ms=None if failed is None else failed.due_at_ms,
        started_ms=run.started_ms,
        first_failed_ms=None if failed is None else failed.first_failed_ms,
        last_failed_ms=None if failed is None else failed.last_failed_ms,
        last_error_type=None if failed is None else failed.error_type,
        last_error_message=None if failed is None else failed.error_message,
        replays=0 if metadata is None else metadata.replays,
        fence=run.fence,
        number=1 if metadata is None else metadata.delivery + 1,
        released=metadata is not None and metadata.tier == RELEASED,
        edited=None if metadata is None else metadata.edited,
    )


def open_delivery(run: Run) -> Delivery:
    """Return the delivery that the handler takes, with what it publishes."""
    delivery, context = delivery_of(run), run.context
    if context.handler.takes_delivery:
        delivery.outbox = run.outbox = Outbox(context.handler.destinations, delivery.failure_id, context.max_bytes)
    return delivery


async def close_delivery(run: Run) -> None:
    """Take nothing more from the handler; raise what it says that the record failed with, or `PublishError`."""
    if (outbox := run.outbox) is not None:
        wishes = outbox.close()
        if (failed := outbox.failed) is not None:
            outbox.failed = None
            try:
                raise failed
            finally:
                del failed  # this frame is in its traceback, as in `DeliveryPool._call`
        if wishes:
            await outbox.take(run.context.random)

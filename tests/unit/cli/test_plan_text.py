"""The words of `retryapp plan`."""

from __future__ import annotations

import pytest

from retryapp.cli.plan import plan_facts, plan_text
from retryapp.kafka import Action, Plan, PlanStep


@pytest.mark.parametrize(
    ("action", "said"),
    [(Action.MISSING, "1 of 1 topic prevents the application from starting"), (Action.CREATE, "1 to create:")],
)
def test_a_topic_that_two_handlers_publish_to_is_one(action: Action, said: str) -> None:
    """It was counted, and named, once for each of them."""
    step: dict[str, object] = {"topic": "receipts", "role": "published", "action": action, "group": "billing"}
    rest: dict[str, object] = {"partitions": None, "replication": None, "why": {"partitions": "create it"}}
    plan = Plan(tuple(PlanStep(main=main, **step, **rest) for main in ("orders", "cards")), 1, "b:9092")  # type: ignore[arg-type]
    facts = plan_facts(plan)
    assert facts["to_create"] + facts["refused"] == ["receipts"]
    assert said in plan_text(plan, why=False, manners={})

"""Handlers of a group, found by the topics that there are."""

from __future__ import annotations

import pytest

from retryapp.kafka import group_missing
from retryapp.kafka.owner import OwnerMark, claim_owner_mark

pytestmark = pytest.mark.broker


def test_a_group_that_is_missing_is_told_those_that_are_most_like_it(connection, admin, make_topic, topology):
    """However long the name of its main topic is, and however many others there are; never the group itself."""
    group, main = topology.group, "orders-of-customers-received-from-the-web-shop"
    for owner in (*(f"{group[:6]}{number}.in" for number in range(20)), f"{group}.{main}"):
        make_topic(1, f"{owner}.pending.changelog")
    claim_owner_mark(connection, f"{group}.{main}.pending.changelog", OwnerMark(group, main))
    wrong, own = (str(group_missing(admin, name)) for name in (f"{group}s", group))
    assert group in wrong.partition("Groups that have some: ")[2].split(", ")
    assert group not in own.partition("Groups that have some: ")[2].split(", ")

"""Rights on a broker with an authorizer: those of the docs, and how they are granted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AclBinding, AclOperation, AclPermissionType, ResourcePatternType, ResourceType

from harness.operator import Operator, answered
from harness.secured import USER

CLOSED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
}
"""Settings of a broker on which a login has what it is granted; operators come without one."""
KINDS = {
    "Topic": ResourceType.TOPIC,
    "Group": ResourceType.GROUP,
    "TransactionalId": ResourceType.TRANSACTIONAL_ID,
    "Cluster": ResourceType.BROKER,  # the client library's name for the cluster
}
_OPERATING = Path(__file__).resolve().parents[2] / "docs" / "operating.md"


def grant(operator: Operator, acls: Iterable[Mapping[str, Any]], user: str = USER) -> None:
    bindings = [
        AclBinding(
            KINDS[acl["resource"]],
            acl["name"],
            ResourcePatternType[acl["pattern"].upper()],
            f"User:{user}",
            "*",
            AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", acl["operation"]).upper()],
            AclPermissionType.ALLOW,
        )
        for acl in acls
    ]
    answered(operator.admin.create_acls(bindings))


def rights_of_people(to: str, **names: str) -> list[dict[str, str]]:
    """Return the rights that docs/operating.md names; `names`: its words and ours."""
    section = _OPERATING.read_text().split("### Rights of people")[1].split("###")[0]
    rights = []
    for resource, name, operations in re.findall(rf"^\| {to} \| `(\w+)` \| `(\S+)` \| (.+) \|$", section, re.MULTILINE):
        pattern = "prefixed" if name.endswith("*") else "literal"
        ours = ".".join(names.get(word, word) for word in name.removesuffix("*").split("."))
        rights += [
            {"resource": resource, "name": ours, "pattern": pattern, "operation": operation}
            for operation in re.findall(r"`(\w+)`", operations)
        ]
    return rights

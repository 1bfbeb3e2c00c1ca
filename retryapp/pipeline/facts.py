"""Small facts of a lake: gaps, decisions and erasures, each a file of one JSON object.

A file is written once and never changed. Its name is its identity: a fact that is written twice is there once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from retryapp.pipeline.lake import Lake

_LONGEST: Final = 200  # characters of a file's name; file systems take 255 bytes, with an ending


class Facts:
    """Writes and reads the facts of one lake."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._files = lake.files

    def put(self, table: str, name: str, row: Mapping[str, Any]) -> None:
        """Write a fact, unless it is known already."""
        place, text = self._place(table, name), json.dumps(row, ensure_ascii=False)
        if not self._files.create(place, text) and not self.get(table, fact_name(name)):
            self._files.remove(place)  # half written
            self._files.create(place, text)

    def names(self, table: str) -> list[str]:
        """Return the names of all facts of a table, sorted."""
        return sorted(
            name.removesuffix(".json")
            for name in self._files.names(self._lake.table(table))
            if name.endswith(".json") and not name.startswith((".", "_"))
        )

    def get(self, table: str, name: str) -> dict[str, Any]:
        """Return a fact by its name as ``names`` gives it; nothing of one that is half written."""
        try:
            return dict(json.loads(self._files.read(f"{self._lake.table(table)}/{name}.json") or "{}"))
        except ValueError:  # or the end of its text is half a character
            return {}

    def rows(self, table: str) -> list[dict[str, Any]]:
        return [row for name in self.names(table) if (row := self.get(table, name))]

    def _place(self, table: str, name: str) -> str:
        return f"{self._lake.table(table)}/{fact_name(name)}.json"


def fact_name(text: str) -> str:
    """Return text as a file's name; what is too long for one ends with its hash.

    >>> fact_name("a/b c")
    'a~2Fb~20c'
    """
    name = quote(text, safe="@").replace("~", "%7E").replace("%", "~")
    return name if len(name) <= _LONGEST else f"{name[:100]}@{hashlib.sha256(text.encode()).hexdigest()[:16]}"

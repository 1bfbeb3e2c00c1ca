"""The document of the tables says what their schemas say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


def test_every_column_is_described(project_root: Path) -> None:
    """Each table with its columns in their order, and what they mean."""
    pytest.importorskip("pyspark", reason="the schemas need PySpark: pip install 'retryapp[spark]'")
    from retryapp.pipeline.analysis.schemas import ATTEMPT, DERIVED_TABLES

    text = (project_root / "docs" / "report.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", text, re.S | re.M))
    assert list(sections) == list(DERIVED_TABLES)
    for name, schema in DERIVED_TABLES.items():
        told = re.findall(r"^\| `(\w+)` \| [^|]+ \| (.+) \|$", sections[name], re.M)
        assert told == [(field.name, field.metadata["comment"]) for field in schema], name
    assert f"`{'`, `'.join(ATTEMPT.fieldNames())}`" in sections["journeys"]

"""docs/seeing.md: its addresses are routes, and its columns are those of the page."""

from __future__ import annotations

import re
from pathlib import Path

from retryapp.web.answers import PREFIX
from retryapp.web.views import ROUTES

ROOT = Path(__file__).resolve().parent.parent.parent
TEXT = (ROOT / "docs" / "seeing.md").read_text()


def test_addresses_are_pages() -> None:
    """All lists, each once."""
    routes = {PREFIX + path.replace("{main}", "orders") for path, _ in ROUTES}
    addresses = re.findall(r"^\| `(/retries/[^`]*)` \|", TEXT, re.MULTILINE)
    assert len(addresses) == 6
    assert set(addresses) <= routes


def test_columns_of_the_partitions_page_are_explained() -> None:
    """Every heading of the table."""
    page = (ROOT / "retryapp" / "web" / "templates" / "partitions.html").read_text()
    headings = re.findall(r'<th scope="col"[^>]*>([^<]+)</th>', page)
    assert len(headings) == 10
    explained = re.findall(r"^\| ([^|]+) \|", TEXT.split("### Partitions")[1], re.MULTILINE)
    assert set(headings) - {"Partition"} <= set(explained)

"""Cells of tables: what is in them is escaped, and what is not known is a dash."""

from __future__ import annotations

from typing import Any

import pytest
from markupsafe import Markup

from retryapp.web import cells

NOW_MS = 1_760_000_000_000
HOSTILE = "<b onclick='x'>&\u202e"
SAFE = "&lt;b onclick=&#39;x&#39;&gt;&amp;\\u202e"
DASH = '<span class="soft">-</span>'
RECORD: dict[str, Any] = {"attempt": 2, "replays": 0, "max_attempts": None, "error_type": HOSTILE, "message": None}


@pytest.mark.parametrize(
    ("cell", "html"),
    [
        (cells.known(HOSTILE), SAFE),
        (cells.known(""), ""),
        (cells.known(None), DASH),
        (cells.when(None, NOW_MS), DASH),
        (
            cells.when(NOW_MS - 62_000, NOW_MS),
            '<time datetime="2025-10-09T08:52:18.000Z">1 min 2 s ago <small>2025-10-09 08:52:18.000 UTC</small></time>',
        ),
        (
            cells.when_due(NOW_MS - 11_000, NOW_MS),
            '<time datetime="2025-10-09T08:53:09.000Z" class="bad">overdue 11 s '
            "<small>2025-10-09 08:53:09.000 UTC</small></time>",
        ),
        (cells.attempts(RECORD, 1), "<span>3</span>"),
        (cells.attempts({**RECORD, "attempt": None}, 1), DASH),
        (
            cells.attempt(1, 2, 9),
            '<span><span class="soft">replay 2,<br>attempt</span> 1 <span class="soft">of 9</span></span>',
        ),
        (cells.error(RECORD), f"<code>{SAFE}</code>"),
        (
            cells.error({"error_type": None, "message": HOSTILE}),
            f'<code>{DASH}</code><br><span class="soft">{SAFE}</span>',
        ),
        (cells.cause({"cause_id": None}, "/"), DASH),
        (
            cells.cause({"cause_id": '"><i>'}, '/a"b'),
            '<a href="/a&#34;b?cause=&#34;&gt;&lt;i&gt;"><code class="id">&#34;&gt;&lt;i&gt;</code></a>',
        ),
    ],
)
def test_cells_hold_escaped_text(cell: Markup, html: str) -> None:
    """Whatever a record, or another worker, says."""
    assert (type(cell), str(cell)) == (Markup, html)

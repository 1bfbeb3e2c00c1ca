"""The report of an analysis, as facts for programs and as one page for people.

The page is one file without a script and without a request: charts are SVG in it, colours follow the reader's theme.
All text of records is escaped.
"""

from retryapp.pipeline.report.facts import collect
from retryapp.pipeline.report.page import to_page

__all__ = ["collect", "to_page"]

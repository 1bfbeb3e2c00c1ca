"""The report of an analysis: facts for programs, and one page without scripts, requests or unescaped text."""

from retryapp.pipeline.report.facts import collect
from retryapp.pipeline.report.page import to_page

__all__ = ["collect", "to_page"]

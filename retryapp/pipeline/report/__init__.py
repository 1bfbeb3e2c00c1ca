"""The report of an analysis: facts for programs, and one page without scripts, requests or unescaped text."""

"""The analysis: tables derived from the archive's ``records``, and the checks on them.

Each function is named for the table that it returns; ``job`` reads, wires and writes. A run:

1. The *cut*: the group's committed offsets in its main topics, at a moment at which no transaction moves them; then the
   topics of its handlers are archived up to their ends after all transactions before that. Later records are left out.
2. ``journeys``: one row for each failure id. Only the ids that new records or a moved cut touch are derived again; the
   result is the same as of all of them (a property test).
3. All other tables, from the journeys and the workers' own counts (``progress`` events). Offsets are never subtracted
   to get a count.
4. The checks.
"""

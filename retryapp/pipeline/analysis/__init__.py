"""The analysis: tables derived from the archive's ``records``, and the checks on them.

Functions from DataFrame to DataFrame, each named for the table that it returns; the columns are in ``schemas``. ``job``
reads, wires and writes. Every table can be removed and made again.

Life of a run:

1. The *cut*: the group's committed offsets in its main topics, at a moment at which no transaction moves them; then the
   topics of its handlers are archived up to their ends after all transactions before that. So for every record before
   the cut the archive has everything that was published when the cut was taken. Later records are left out.
2. ``journeys``: one row for each failure id. Only the ids that new records or a moved cut touch are derived again; the
   result is the same as of all of them (a property test).
3. All other tables, from the journeys and the workers' own counts (``progress`` events). Offsets are never subtracted
   to get a count.
4. The checks.
"""

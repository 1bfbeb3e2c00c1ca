"""The analysis: tables derived from the archive's ``records``, and the checks on them.

Functions from DataFrame to DataFrame, each named for the table that it returns; the columns are in ``schemas``. ``job``
reads, wires and writes. Every table can be removed and made again.

Life of a run:

1. The *cut*: the group's committed offsets in its main topics, at a moment at which no transaction moves them; then the
   topics of its handlers are archived up to where they end once all transactions before that are over. So of every
   record that lies before the cut everything is there that was published when the cut was taken. Records at or behind
   the cut are left out.
2. ``journeys``: one row for each failure id. Only the ids that new records or a moved cut touch are made anew; the
   result is that of making all of them (a property test).
3. All other tables, from the journeys and the workers' own counts (``progress`` events). Offsets are never subtracted
   to get a count.
4. The checks.
"""

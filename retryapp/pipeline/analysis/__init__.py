"""The analysis: what the archive's records come to, as tables and one report.

Pure functions from DataFrame to DataFrame, one noun each; ``job`` reads, wires and writes. They are made of
``records`` alone, so everything here can be removed and made again. The tables and their columns: ``schemas``.

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

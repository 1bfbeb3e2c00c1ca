"""The analysis: what became of every record that failed, derived from the archive.

A run:

1. The *cut*: how far the group has come in its main topics, by committed transactions; then the topics of its handlers
   are archived up to their ends after all transactions before that. Later records are left out.
2. ``readings``: what each archived record says. A record is read once, by the first run that finds it.
3. ``journeys``: one row for each failure id, with all its attempts.
4. ``rollup`` and ``delays``: all attempts, summed up. Causes, recovery, cost and outages are read from them.
5. The ledger, from the journeys and the workers' own counts (``progress`` events): offsets are never subtracted to get
   a count. And the checks.
"""

"""The data pipeline on Spark: archives every failure beyond the retention of its topics, and analyses them.

Importing this package does not import PySpark. The lake is one URI. Below it::

    lake.json                 format version, and the salt of the key hashes
    records/                  each record of a retry, dead-letter or events topic, once (``schemas.RECORDS``)
    topics/                   every life of every topic: cluster_id, topic_id, epoch, topic, group, main, station,
                              partitions, first_seen_ms
    gaps/                     offsets that were lost before they were read, and why
    runs/                     one row when a run begins and one when it ends, with the published cut
    erasures/                 hashes of erased keys, until when their records are not kept, and when it was done
    holds/                    who is at work
    derived/                  tables derived from ``records``; an erasure removes them
    checkpoints/archive/v1/   Spark's checkpoints, disposable: without them positions come from ``records``

``metadata`` and ``event`` of a record come from core's own decoders, called in Spark's Python workers, so the pipeline
cannot read a header otherwise than a worker does.
"""

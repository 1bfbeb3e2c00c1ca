"""The data pipeline on Spark: everything that failed, kept beyond the retention of its topics, and explained.

The jobs are plain Structured Streaming: ``read`` (from Kafka, committed records only), ``transform`` (DataFrame to
DataFrame), ``write`` (to the lake), ``archive`` (the runner). Importing this package does not import PySpark.

The lake is one URI. Below it::

    lake.json                 format of the lake, and the salt of its key hashes
    records/                  the archive: one row for each record of a retry, dead-letter or events topic
    topics/                   every life of every topic: cluster_id, topic_id, epoch, topic, group, main, station,
                              partitions, first_seen_ms
    gaps/                     offsets that were lost before they were read, and why
    runs/                     one row when a run begins and one when it ends, with the published cut
    erasures/                 hashes of erased keys, until when their records are not kept, and when it was done
    derived/                  what is made of ``records`` and can be made again; an erasure removes it
    checkpoints/archive/v1/   Spark's own notes, disposable: without them positions come from ``records``

``records`` (Delta, partitioned by ``date``; its column comments say the same). A row is identified by
``(cluster_id, topic_id, partition, offset)``, and is there once:

=================  =======================================================================================
cluster_id         string: Kafka's cluster id
topic_id           string: first 8 characters of the topic id, as in ``retry-origin``
epoch              int: 1 for the first life of a topic's name, one more each time that it was re-created
topic              string: the topic's name
partition          int
offset             bigint: order within (topic_id, partition); offsets have gaps, so never count by them
timestamp_ms       bigint: the broker's time of arrival
date               date: its day in UTC; partition column
key, value         binary: as they are; null differs from empty
headers            array<struct<key string, value binary>>: all, ours included, in their order
key_hash           string: salted SHA-256 of the key (hex); null where the key is null
group              string: consumer group, from the topic's name
main               string: main topic of the handler
station            string: ``retry``, ``dlq`` or ``events``
failure_id         string: ``group/topic@id/partition/offset``; null where unreadable, and for events of no record
metadata           struct: stations retry and dlq: the fields of :class:`retryapp.core.metadata.RetryMetadata` under
                   their names (numbers bigint, ``origin`` a struct, ``history`` an array of structs); else null
event              struct: station events: the fields of all kinds of :mod:`retryapp.core.lifecycle` together, ``kind``
                   first; those that a kind does not have are null; else null
unreadable         string: why metadata or event could not be read (the quarantine); null where it could
run_id             string: the run that wrote the row
=================  =======================================================================================

``metadata`` and ``event`` come from core's own decoders, called in Spark's Python workers, so the pipeline cannot read
a header otherwise than a worker does.
"""

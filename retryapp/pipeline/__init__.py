"""The data pipeline on Spark: archives every failure beyond the retention of its topics, and analyses them.

Importing this package does not import PySpark. docs/pipeline.md lists what is in a lake; of that ``derived/`` can be
removed. ``metadata`` and ``event`` of a record come from core's own decoders, called in Spark's Python workers, so the
pipeline cannot read a header otherwise than a worker does.
"""

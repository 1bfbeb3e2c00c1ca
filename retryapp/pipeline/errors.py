"""Errors of the pipeline's environment, each with its remedy."""

from __future__ import annotations

from retryapp.core.errors import EnvironmentFault


class SparkMissingError(EnvironmentFault):
    """PySpark is not installed, or not the version of our jars. Operator action: install the ``spark`` extra."""

    def __init__(self, needed: str, problem: str) -> None:
        super().__init__(
            f"the pipeline needs PySpark {needed} ({problem}). Install it from your clone: pip install "
            f"'/path/to/retryapp[spark]' (565 MB), or use a platform that has it"
        )


class SparkStartError(EnvironmentFault):
    """Spark did not start. Operator action: read its output; memory, Java and ``--master`` are the usual causes."""

    def __init__(self, java: str, master: str, problem: str) -> None:
        super().__init__(
            f"Spark did not start on {master}, with {java}: {problem.rstrip('.')}. Look at the lines above. It needs "
            f"Java 17, 21 or 25, about 2 GB of free memory, a master that answers (--master) and settings that Spark "
            f"takes (--conf, --memory)"
        )


class LakeUnusableError(EnvironmentFault):
    """The lake's URI cannot be used. Operator action: correct it, or grant the rights."""

    def __init__(self, uri: str, problem: str) -> None:
        super().__init__(
            f"the lake {uri} cannot be used: {problem}. Give a folder or a URI that Spark can write to: file:, s3a:, "
            f"abfss: or gs: (the last three need their Hadoop jars and credentials)"
        )


class LakeNotSharedError(LakeUnusableError):
    """A cluster's workers do not share the lake's folder. Operator action: undo the run as advised, mount it."""

    def __init__(self, uri: str, table: str, version: int) -> None:
        restore = f"run RESTORE {table} TO VERSION AS OF {version - 1} in a Spark session on this machine"
        super().__init__(
            uri,
            f"each worker of the cluster wrote rows to its own disk, where no other machine can read them. Undo that: "
            f"{restore if version else 'remove the lake, which is new'}. Then mount its folder on all nodes, or use "
            f"another lake",
        )


class NewerLakeError(EnvironmentFault):
    """The lake was written by a newer retryapp. Operator action: upgrade this one; nothing was changed."""

    def __init__(self, what: str, found: int, known: int) -> None:
        super().__init__(
            f"{what} has format version {found}, this retryapp knows {known} and older. Upgrade retryapp; nothing was "
            f"changed"
        )


class TopicChangedError(EnvironmentFault):
    """A topic was re-created while it was being read. Operator action: run again; the message says what to look at."""

    def __init__(self, topic: str, before: str, after: str, run_id: str) -> None:
        super().__init__(
            f"topic {topic} was re-created during run {run_id} (id {before}, now {after}): its rows of "
            f"this run are marked in-doubt in the gaps table. Run again: the new topic is archived from its beginning"
        )


class OtherRunError(EnvironmentFault):
    """Another archive run has written to the lake meanwhile. Operator action: wait for it, or stop it."""

    def __init__(self, job: str, problem: str) -> None:
        super().__init__(
            f"another {job} run writes to this lake: {problem}. Wait for it, or stop it; nothing was written twice"
        )


class OtherClusterError(EnvironmentFault):
    """The lake has the records of another Kafka cluster. Operator action: correct ``--broker``, or use a new lake."""

    def __init__(self, lake: str, known: str, found: str) -> None:
        super().__init__(
            f"the lake {lake} has the records of Kafka cluster {known!r}, and this is {found!r}. Correct --broker, or "
            f"give each cluster a lake of its own (--lake); nothing was changed"
        )


class TableReplacedError(EnvironmentFault):
    """The table of records is gone, or another one. Operator action: put it back, or begin again as advised."""

    def __init__(self, table: str, problem: str, mark: str = "") -> None:
        again = f"; to begin again with what topics still have, remove {mark}" if mark else ""
        super().__init__(
            f"the table {table} is not the one that this lake was archived to: {problem}. Put that table back{again}. "
            f"Nothing was changed"
        )


class ErasureUnfinishedError(EnvironmentFault):
    """Files with erased records could not be removed. Operator action: grant the rights, then ``erase --resume``."""

    def __init__(self, first: str, count: int) -> None:
        super().__init__(
            f"{count} files that may hold erased records are still there, as {first}. The erasure has not ended: grant "
            f"the right to remove them, then run 'retryapp pipeline erase --resume' with the same --lake"
        )


class NameUnknownError(EnvironmentFault):
    """The lake has no such gap or cause. Operator action: take the name from the command that lists them."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"the lake has no {kind} {name!r}. 'retryapp pipeline {kind}s' with the same --lake lists them; nothing "
            f"was changed"
        )


class HeldError(EnvironmentFault):
    """Another run holds the same part of the lake. Operator action: wait, or stop it."""

    def __init__(self, job: str, holder: str, lake: str) -> None:
        super().__init__(
            f"the {job} run cannot write to the lake {lake} while another run does: {holder}. Wait until that run "
            f"ends, or stop it; nothing was changed"
        )


class TableMissingError(EnvironmentFault):
    """The lake has no archive, or no analysis yet. Operator action: run that first, or correct ``--lake``."""

    def __init__(self, lake: str, *, job: str = "archive") -> None:
        what = "analysis" if job == "analyse" else "archive"
        super().__init__(
            f"the lake {lake} has no {what} yet. Run 'retryapp pipeline {job}' with this --lake first, or correct it"
        )


class JobFailedError(EnvironmentFault):
    """A Spark job ended with an error. Operator action: as advised; what was committed stays, a rerun continues."""

    def __init__(self, job: str, problem: str, advice: str) -> None:
        super().__init__(f"the {job} job failed: {problem}. {advice}. What was committed stays; a rerun continues")

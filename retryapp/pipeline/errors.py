"""What can be wrong with the pipeline's surroundings, each with its remedy."""

from __future__ import annotations

from retryapp.core.errors import EnvironmentFault


class SparkMissingError(EnvironmentFault):
    """PySpark is not installed. Operator action: install the ``spark`` extra."""

    def __init__(self, problem: str) -> None:
        """Args: problem: what Python said."""
        self.problem = problem
        super().__init__(f"the pipeline needs PySpark ({problem}). Install it: pip install 'retryapp[spark]' (565 MB)")


class SparkStartError(EnvironmentFault):
    """Spark's JVM did not start. Operator action: see what it said; memory and Java are the usual causes."""

    def __init__(self, java: str, problem: str) -> None:
        """Args: java: the Java that was used. problem: what Spark said."""
        self.java = java
        self.problem = problem
        super().__init__(
            f"Spark did not start with {java}: {problem}. Look at the lines above; Java 17, 21 or 25 is needed, and "
            f"about 2 GB of free memory"
        )


class LakeUnusableError(EnvironmentFault):
    """The lake's URI cannot be used. Operator action: correct it, or grant the rights."""

    def __init__(self, uri: str, problem: str) -> None:
        """Args: uri: as given. problem: what is wrong."""
        self.uri = uri
        self.problem = problem
        super().__init__(
            f"the lake {uri} cannot be used: {problem}. Give a folder or a URI that Spark can write to: file:, s3a:, "
            f"abfss: or gs: (the last three need their Hadoop jars and credentials)"
        )


class NewerLakeError(EnvironmentFault):
    """The lake was written by a newer retryapp. Operator action: upgrade this one; nothing was changed."""

    def __init__(self, what: str, found: int, known: int) -> None:
        """Args: what: lake or table. found: its version. known: the newest that is known here."""
        self.what = what
        self.found = found
        self.known = known
        super().__init__(
            f"{what} has format version {found}, this retryapp knows {known} and older. Upgrade retryapp; nothing was "
            f"changed"
        )


class TopicChangedError(EnvironmentFault):
    """A topic was re-created while it was being read. Operator action: run again; the message says what to look at."""

    def __init__(self, topic: str, before: str, after: str, run_id: str) -> None:
        """Args: topic: its name. before, after: topic ids. run_id: the run whose rows are in doubt."""
        self.topic = topic
        self.before = before
        self.after = after
        self.run_id = run_id
        super().__init__(
            f"topic {topic} was re-created during run {run_id} (id {before}, now {after}): what this run wrote of it "
            f"is in doubt and is marked in the gaps table. Run again; the new topic is archived from its beginning"
        )


class OtherRunError(EnvironmentFault):
    """Another run of the same group is at work on the lake. Operator action: wait for it, or stop it."""

    def __init__(self, job: str, problem: str) -> None:
        """Args: job: its name. problem: what Spark said."""
        self.job = job
        self.problem = problem
        super().__init__(
            f"another {job} run of this group works on this lake: {problem}. Wait for it, or stop it; nothing was "
            f"written twice. Where none runs, a crash has left half a note: remove that checkpoint's folder, the next "
            f"run goes on from the table's own offsets"
        )


class TurnLostError(EnvironmentFault):
    """Somebody else took over the table while a job was at work on it. Operator action: run it again."""

    def __init__(self, job: str, lake: str) -> None:
        """Args: job: its name. lake: its URI."""
        self.job = job
        self.lake = lake
        super().__init__(
            f"the {job} run was not heard of for too long (a suspended machine, a store that did not answer), and "
            f"somebody else has begun to write to the lake {lake}. What was committed stays; a rerun continues"
        )


class HeldError(EnvironmentFault):
    """Another run is at work on the same part of the lake, or queues for it. Operator action: wait, or stop it."""

    def __init__(self, job: str, holder: str, lake: str) -> None:
        """Args: job: what was to be done. holder: who is at work. lake: its URI."""
        self.job = job
        self.holder = holder
        self.lake = lake
        super().__init__(
            f"the {job} run would write to the lake {lake} beside another one: {holder}. Wait until that one is "
            f"through, or stop it; nothing was changed"
        )


class TableMissingError(EnvironmentFault):
    """The lake has no archive yet. Operator action: run ``retryapp pipeline archive`` first, or correct ``--lake``."""

    def __init__(self, lake: str) -> None:
        """Args: lake: its URI."""
        self.lake = lake
        super().__init__(
            f"the lake {lake} has no archive yet. Run 'retryapp pipeline archive' first, or correct --lake"
        )


class JobFailedError(EnvironmentFault):
    """A Spark job ended with an error. Operator action: as advised; what was committed stays, a rerun continues."""

    def __init__(self, job: str, problem: str, advice: str) -> None:
        """Args: job: its name. problem: the innermost cause. advice: what to do."""
        self.job = job
        self.problem = problem
        self.advice = advice
        super().__init__(f"the {job} job failed: {problem}. {advice}. What was committed stays; a rerun continues")

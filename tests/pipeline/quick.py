"""What keeps a JVM of a test small, and its start short."""

from __future__ import annotations

QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m")
"""Starts in half the time; long jobs would be slower. With one tier the code cache would be 48 MB: some hundred queries
fill it, and Spark then dies of it."""

INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Generating and compiling Java for each plan takes longer than ten rows take. What a user's session generates is tried
by the tests that start commands, and by the property test of the reader."""

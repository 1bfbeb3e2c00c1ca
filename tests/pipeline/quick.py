"""What keeps a JVM of a test small."""

from __future__ import annotations

QUICK_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ReservedCodeCacheSize=240m")
"""Starts in half the time; long jobs would be slower. With one tier the code cache would be 48 MB: some hundred queries
fill it, and Spark then dies of it."""

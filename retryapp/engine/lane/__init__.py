"""The lane: turns of one handler and partition become transactions, in order."""

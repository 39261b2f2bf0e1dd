"""Proving a lake: what its tables hold against what was landed, and against the topics."""

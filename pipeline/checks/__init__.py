"""Proving a lake: its tables against the landed data, and against the topics."""

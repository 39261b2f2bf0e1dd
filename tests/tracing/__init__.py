"""Trace context through records, folds, outboxes and queries, and the spans made of it."""

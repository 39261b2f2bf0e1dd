"""Changelogs written outside a worker: a table's state from history, fenced, and whole or not at all."""

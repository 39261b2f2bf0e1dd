"""Joins: stream with table, table with table, by foreign key, and of two streams within an interval."""

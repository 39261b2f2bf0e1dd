"""Spark: its session, its errors, and what travels to its executors."""

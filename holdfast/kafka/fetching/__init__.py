"""Fetches of our own: partitions at exact positions, ahead and within a bound, as columns."""

"""Requests about groups: their members, offsets and descriptions."""

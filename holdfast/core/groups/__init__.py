"""Balanced groups: who is a member, and which partitions are whose."""

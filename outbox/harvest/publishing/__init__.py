"""Rows on their way to Kafka: where they go, how large a batch may be, and what becomes of those that it
refuses.
"""

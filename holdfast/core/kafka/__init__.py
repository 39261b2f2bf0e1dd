"""Kafka's own bytes and rules: the wire's types, record batches, requests, transaction and producer state,
ACLs.
"""

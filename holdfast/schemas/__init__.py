"""Serdes whose schemas lie in a schema registry: bytes in Confluent's format on one side, typed values on the
other.
"""

"""Aggregations and windows: declarations that compile to an ordinary processor.

The public face of this wing is `holdfast.streams`.
"""

"""Steps, aggregations, windows and joins: declarations that compile to ordinary processors.

The public face of this wing is `holdfast.streams`.
"""

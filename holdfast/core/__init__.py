"""Pure rules: no clock, no randomness, no input or output.

A wing is a folder about one subject, and its `__init__` names the subject. `core` may import `errors`, and
the packages that tests/test_imports.py lists for it: msgspec, and the codecs of Kafka's batches and sketches.
"""

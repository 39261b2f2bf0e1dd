"""Pure rules: no clock, no randomness, no input or output.

May import only errors, the standard library and msgspec.
"""

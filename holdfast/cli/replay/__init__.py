"""Commands that fold history again: to tables, as the first state of a new version, or to compare with the
live state.
"""

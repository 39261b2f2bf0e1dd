"""Commands that fold history again: to tables, as a new version's beginning, or to hold against what is
live.
"""

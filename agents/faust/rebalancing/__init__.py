"""Who owns what in the group: the assignor, how tables are shared out, and what a member does when that
changes.
"""

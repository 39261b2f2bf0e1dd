"""The global tables of a worker: the feed of their topics, one copy each, and what transactions see of
them.
"""

"""An application's declarations of Faust's own, in addition to its processors: settings, agents, topics and
tables.
"""

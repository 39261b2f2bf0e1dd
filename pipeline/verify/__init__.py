"""A live table, its stores and what it has emitted, held against a replay of the logs; where they first
differ.
"""

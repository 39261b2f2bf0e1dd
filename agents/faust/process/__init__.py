"""The worker's process: the manager that is watched while it runs, brokers that are away, and why it
leaves.
"""

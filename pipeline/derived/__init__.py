"""Tables that are derived from the logs of a cluster: who held what, who took over, how long the outbox took,
which records were set aside.
"""

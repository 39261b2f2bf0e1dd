"""Where holdfast takes the place of parts of Faust: transport, recovery, assignor, and how a worker starts
and leaves.
"""

"""Claims of partitions over a topic: their frames, the folds that say who owns what, lanes, and resets of
offsets.
"""

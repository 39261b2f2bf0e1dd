"""The two strategies: `fenced`, exactly once, and `mark`, the one of goharvest."""

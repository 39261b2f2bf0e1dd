"""How a replay folds: from topics or the lake, in this process or as tasks of Spark."""

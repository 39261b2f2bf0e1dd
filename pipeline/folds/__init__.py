"""The folds of a replay: from topics or the lake, in this process or as tasks of Spark."""

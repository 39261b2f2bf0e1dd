"""The fold of several sources in one order, by choices that are recorded."""

"""How records of several sources are folded in one order, by choices that are recorded."""

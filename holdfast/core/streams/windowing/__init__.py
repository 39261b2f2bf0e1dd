"""Windows: their kinds, their rows, how they are folded, and when they close."""

"""Tables of what a fold makes of the lake: the state, and the history of each row."""

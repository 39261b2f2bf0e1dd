"""What a table holds: rows, their bytes and types, timers, and the order of keys."""

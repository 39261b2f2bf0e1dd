"""The state of a table: rows, their bytes and types, timers, and the order of keys."""

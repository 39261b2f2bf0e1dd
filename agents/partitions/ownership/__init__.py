"""How partitions change hands: between workers, and between versions of a table."""

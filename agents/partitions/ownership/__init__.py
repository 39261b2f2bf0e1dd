"""Changes of a partition's owner: between workers, and between versions of a table."""

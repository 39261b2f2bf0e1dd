"""What a worker holds, and what it tells the others of that."""

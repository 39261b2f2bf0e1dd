"""What a user declares: processors, sources, streams, serdes, tables, and what is checked of them."""

"""The path of a batch: its fetched records are folded, committed, and made visible."""

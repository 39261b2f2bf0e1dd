"""The path of a batch: what was fetched, folded, committed, and made visible."""

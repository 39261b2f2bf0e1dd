"""Commands on tables: their rows, the quarantine, versions, and repair."""

"""Commands on tables: what they hold, what was set aside, versions, and repair."""

"""The declarations of a user, with their checks: processors, sources, streams, serdes and tables."""

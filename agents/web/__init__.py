"""The worker's web port: queries, health and metrics."""

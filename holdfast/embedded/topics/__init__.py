"""Topics of the embedded broker: their names, partitions and settings."""

"""Workers: the Faust application, the partitions that it owns, the built-in services, the web port."""

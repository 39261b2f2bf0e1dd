"""What holdfast's own application runs: the rationalizer, the bookkeeper, the harvester."""

"""The services of holdfast's own application: the rationalizer, the bookkeeper, the harvester."""

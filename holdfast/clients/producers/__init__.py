"""A producer with a name that outlives its processes."""

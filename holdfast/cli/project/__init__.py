"""`holdfast new`: lays out a project of one's own."""

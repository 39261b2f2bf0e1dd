"""Faust's own tests, run against the application of holdfast."""

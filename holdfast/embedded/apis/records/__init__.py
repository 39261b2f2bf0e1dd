"""Requests about records: written, read, and where they lie."""

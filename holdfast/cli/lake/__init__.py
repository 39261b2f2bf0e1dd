"""Shared parts of the commands that read history: its location, its reader, and its progress."""

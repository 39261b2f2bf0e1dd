"""Requests about transactions and producers."""

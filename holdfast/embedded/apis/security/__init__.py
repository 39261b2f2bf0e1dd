"""Requests about who comes, and what they may."""

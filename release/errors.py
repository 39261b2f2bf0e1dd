"""What stops a release."""

from __future__ import annotations


class ReleaseError(Exception):
    """Says what is wrong with what would be released, and what to do."""

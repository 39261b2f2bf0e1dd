"""Patterns that clients send: read by Python's `re`, where Kafka has RE2."""

from __future__ import annotations

import re


def pattern_trouble(pattern: str) -> str | None:
    """Return what is wrong with *pattern*, in Python's words; None when it can be matched."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error)
    return None

"""Paths in the checkout, for tests that read pages, start programs there, or need golden data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TESTDATA = ROOT / "tests" / "testdata"
TLS = TESTDATA / "tls"
EXAMPLES = ROOT / "examples"


def example_file(name: str) -> Path:
    """Return where the example program *name* lies, below the folder of its subject."""
    (found,) = EXAMPLES.rglob(name)
    return found

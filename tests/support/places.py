"""Where things lie in the checkout, for tests that read pages, start programs there, or need golden data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
TESTDATA = ROOT / "tests" / "testdata"
TLS = TESTDATA / "tls"

"""An outbox in SQLite, published exactly once to the embedded broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.outbox.databases import FreshOutbox
from tests.outbox.harvest.test_fenced import (
    test_rows_are_published_once_in_order_with_contiguous_sequences as published_once,
)

pytestmark = pytest.mark.long

test_rows_are_published_once = published_once


@pytest.fixture
def outbox(tmp_path: Path) -> FreshOutbox:
    return FreshOutbox.make(f"sqlite:///{tmp_path / 'outbox.db'}")

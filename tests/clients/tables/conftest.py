"""A question of these tests has its five seconds of a machine that runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.clients.tables.client import TableClient
from tests.support.limits import AwakeClock


@pytest.fixture(autouse=True, scope="package")
def awake() -> Iterator[None]:
    """Have no deadline pass while the machine lets this process, workers in memory included, do nothing."""
    with AwakeClock() as clock, pytest.MonkeyPatch.context() as patched:
        defaults = TableClient.__init__.__kwdefaults__
        assert defaults is not None
        assert "clock" in defaults
        patched.setitem(defaults, "clock", clock)
        yield

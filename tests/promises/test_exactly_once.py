"""A worker counts each record once, although SIGKILL ends it at every step of a batch."""

from __future__ import annotations

from tests.chaos.conftest import application
from tests.chaos.test_kills import test_sigkill_at_every_step_leaves_counts_exact

__all__ = ["application", "test_sigkill_at_every_step_leaves_counts_exact"]

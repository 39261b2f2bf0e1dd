"""Changelogs written exactly once, on the embedded broker."""

from __future__ import annotations

import pytest

from tests.embedded.promises.bodies import bodies_of
from tests.tables import test_changelog

pytestmark = pytest.mark.long

LONG = "test_more_transactions_than_there_are_epochs"
ASKS_NO_BROKER = "test_a_broker_that_is_not_there_is_told_by_its_deadline"

globals().update(bodies_of(test_changelog, LONG, ASKS_NO_BROKER))

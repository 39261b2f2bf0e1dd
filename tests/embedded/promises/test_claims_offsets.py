"""What a claim client asks the broker between its polls, on the embedded broker."""

from __future__ import annotations

import pytest

from tests.clients.claims import test_offsets
from tests.embedded.promises.bodies import bodies_of

pytestmark = pytest.mark.long

DISTURBED = (
    "broker",
    "holdfast_broker",
    "test_questions_to_a_coordinator_that_stands_still_end_and_nothing_of_them_is_left",
    "test_what_was_asked_in_an_outage_is_answered_after_it",
)

globals().update(bodies_of(test_offsets, *DISTURBED))

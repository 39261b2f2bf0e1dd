"""Claims taken, committed, given back and taken over, on the embedded broker."""

from __future__ import annotations

import pytest

from tests.clients.claims import test_consumer
from tests.embedded.promises.bodies import bodies_of

pytestmark = pytest.mark.long

LONG = (
    "test_a_paused_group_releases_and_is_silent_until_the_pause_is_over",
    "test_a_restart_after_the_time_claims_like_anybody",
    "test_messages_in_flight_are_committed_before_the_release",
    "test_of_two_instances_under_one_client_id_the_older_fails_and_the_newer_works",
)
ASK_NO_BROKER = (
    "test_a_broker_that_does_not_answer_is_an_error_within_the_deadline",
    "test_a_value_that_cannot_be_is_refused_with_its_name",
    "test_an_unknown_setting_is_refused_with_the_nearest_name",
)

globals().update(bodies_of(test_consumer, *LONG, *ASK_NO_BROKER))

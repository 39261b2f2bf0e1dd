"""Claims, on the embedded broker."""

from __future__ import annotations

from tests.clients.claims import test_lanes
from tests.embedded.promises.bodies import bodies_of

LONG = (
    "test_a_killed_member_s_lanes_go_on_exactly_where_the_log_stands_and_in_order",
    "test_a_lane_that_is_stuck_costs_its_share_of_the_queue_and_holds_up_nobody",
)

globals().update(bodies_of(test_lanes, *LONG))

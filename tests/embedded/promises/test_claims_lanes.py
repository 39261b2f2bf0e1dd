"""Claims, on the embedded broker."""

from __future__ import annotations

import pytest

from tests.clients.claims import test_lanes
from tests.embedded.promises.bodies import bodies_of

pytestmark = pytest.mark.long

LONG = (
    "test_a_killed_member_s_lanes_go_on_exactly_where_the_log_stands_and_in_order",
    "test_a_lane_that_is_stuck_costs_its_share_of_the_queue_and_holds_up_nobody",
)
ASK_NO_BROKER = (
    "test_the_book_follows_the_lowest_lane_also_when_it_is_another_member_s_that_moves",
    "test_the_check_of_order_sees_what_is_out_of_order",
    "test_what_lanes_do_not_go_with_is_refused_by_name",
)

globals().update(bodies_of(test_lanes, *LONG, *ASK_NO_BROKER))

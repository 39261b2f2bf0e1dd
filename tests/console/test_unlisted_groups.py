"""Groups whose coordinator did not list them."""

from __future__ import annotations

from holdfast.clients.groups.records import GroupKind
from holdfast.config import Settings
from tests.agents.web.test_server import scenario
from tests.console.opened import MadeUpGroups

BILLING = (GroupKind.CLAIM, "billing")


@scenario
async def test_a_list_that_lacks_groups_is_reported_and_they_keep_their_owners() -> None:
    desk = MadeUpGroups(Settings(), 3)
    desk.owners = {BILLING: {("orders", 0): "anna"}}
    await desk.look()
    since_ms = desk.ownership.since_ms(BILLING)
    assert (desk.trouble, since_ms is None) == (None, False)
    desk.owners, desk.unlisted = {}, "1 of the brokers did not list its groups"
    await desk.look()
    assert (desk.trouble, [each.group for each in desk.groups]) == (desk.unlisted, ["billing"])
    assert desk.ownership.since_ms(BILLING) == since_ms

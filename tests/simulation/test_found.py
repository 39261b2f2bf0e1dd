"""What the simulation found: each defect once more, on its own."""

from __future__ import annotations

from holdfast.core.frames import Heartbeat
from holdfast.core.member_actions import Event
from tests.core.member_world import BEGAN_S, World


def test_what_a_dead_process_had_under_way_does_not_end_its_successor() -> None:
    """Frames of the last process arrive in one burst after the restart, and one of them twice: nobody writes them any more."""
    world = World({"orders": 3}, interval_s=4.0)
    other = world.add("b", greedy=True)
    world.run(10.0)
    assert len(other.held) == 3
    successor = world.add("a", "a.2")
    late = [Heartbeat(int(BEGAN_S + world.now_s) - age_s, "a.1", "a", "g", "orders", 0, 5) for age_s in (4, 2, 0)]
    for frame in late:
        world.append(frame)
    world.run(3.0)
    world.append(late[-1])
    world.run(10.0)
    assert successor.error is None
    assert successor.events(Event.RIVAL) == []


def test_of_two_processes_that_go_on_writing_the_older_ends() -> None:
    """The counterpart: what tells a live rival from frames under way does not hide it (D17)."""
    world = World({"orders": 3}, interval_s=4.0)
    old = world.add("a", "a.1", greedy=True)
    world.run(10.0)
    new = world.add("a", "a.2")
    world.run(1.25 * 4.0 + 1.0)
    assert type(old.error).__name__ == "InstanceConflictError"
    assert new.error is None
    world.run(4.0)
    assert len(new.held) == 3

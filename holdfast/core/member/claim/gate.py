"""The one answer to "may this message be handed out now?"."""

from __future__ import annotations

from math import inf


class Gate:
    """The gate of one stay of one partition: the same object from `Start` to the end of the stay.

    It is open until `deliver_until_s`, which a member moves as heartbeats are accepted
    (PROTOCOL.md#the-lease). Once shut, by the member or by its shell, it never opens again: another stay has
    another gate. It is independent of `maximum_outstanding`, which limits how many messages are taken from
    the queue (`Member.room`).

    >>> gate = Gate()
    >>> gate.extend(10.0)
    >>> gate.is_open(9.9), gate.is_open(10.0)
    (True, False)
    >>> gate.shut()
    >>> gate.extend(20.0)
    >>> gate.is_open(9.9), gate.deliver_until_s
    (False, -inf)
    """

    __slots__ = ("deliver_until_s", "is_shut")

    def __init__(self) -> None:
        self.deliver_until_s, self.is_shut = -inf, False

    def is_open(self, now_s: float) -> bool:
        """Return whether a message may be handed out at *now_s*; any thread may ask."""
        # Both are looked at: a thread may shut the gate while another one extends it.
        return not self.is_shut and now_s < self.deliver_until_s

    def extend(self, until_s: float) -> None:
        """Hand out until *until_s*, unless the gate is shut."""
        if not self.is_shut:
            self.deliver_until_s = until_s

    def shut(self) -> None:
        """Hand out nothing more, for good."""
        self.is_shut, self.deliver_until_s = True, -inf

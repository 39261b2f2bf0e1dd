"""Whether records may be folded now, and of which epoch they must be."""

from __future__ import annotations


class FoldGate:
    """Open between an assignment that was carried out and the next revocation. Lives on the event loop.

    `epoch` counts revocations: whatever was fetched before one is void, since the position it came from may
    no longer be ours.
    """

    __slots__ = ("epoch", "open")

    def __init__(self) -> None:
        self.epoch, self.open = 0, False

    def opened(self) -> None:
        """Let records flow: state and positions agree."""
        self.open = True

    def closed(self) -> None:
        """Let none flow; what was fetched stays valid."""
        self.open = False

    def revoked(self) -> None:
        """Let none flow, and void what was fetched."""
        self.open = False
        self.epoch += 1

"""The gate of folding: whether records may be folded now, and the epoch that they must have."""

from __future__ import annotations


class FoldGate:
    """Open between an assignment that was carried out and the next revocation. Lives on the event loop.

    `epoch` counts revocations: records that were fetched before one are void, since the position that they
    were fetched from may be another worker's by now.
    """

    __slots__ = ("epoch", "open")

    def __init__(self) -> None:
        self.epoch, self.open = 0, False

    def opened(self) -> None:
        """Open the gate: state and positions agree."""
        self.open = True

    def closed(self) -> None:
        """Close the gate; fetched records stay valid."""
        self.open = False

    def revoked(self) -> None:
        """Close the gate, and make all fetched records void."""
        self.open = False
        self.epoch += 1

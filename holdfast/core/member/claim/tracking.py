"""The messages of a partition that were handed out, and those that are done, reported in any order
(PROTOCOL.md#commits).

    delivered   ............................
    done        xxxxxxxxx..xxx....x.........
                         ^ current             ^ position

`current` is the offset to commit: everything below it is done, or was never ours. Offsets may have holes
(compaction, control records, other lanes), which cost nothing. A batch is one block, not an entry per offset,
so a batch committed in order costs the same whatever it holds.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from holdfast.errors import CommitError

LIMIT_BLOCK = 65_536
LIMIT_SMALL = 16
LIMIT_POPPED = 256


class _Block:
    """Offsets delivered one after the other: a contiguous range, or (with *offsets*) an ascending list.

    The first *prefix* of them are done; which others are says *done*, by index, once there are any. *left*
    are not done.
    """

    __slots__ = ("count", "done", "first", "left", "offsets", "own", "prefix")

    def __init__(self, first: int, count: int, offsets: Sequence[int] | None, own: bool) -> None:
        self.first, self.count, self.offsets, self.own = first, count, offsets, own
        self.done: bytearray | None = None
        self.prefix, self.left = 0, count

    @property
    def last(self) -> int:
        return self.first + self.count - 1 if self.offsets is None else self.offsets[-1]

    def at(self, index: int) -> int:
        return self.first + index if self.offsets is None else self.offsets[index]

    def find(self, offset: int) -> int:
        """Return the index of *offset*, -1 when it was not delivered."""
        if self.offsets is None:
            return offset - self.first if self.first <= offset < self.first + self.count else -1
        index = bisect_left(self.offsets, offset)
        return index if index < self.count and self.offsets[index] == offset else -1

    def below(self, offset: int) -> int:
        """Return how many of the offsets are below *offset*."""
        if self.offsets is None:
            return min(max(offset - self.first, 0), self.count)
        return bisect_left(self.offsets, offset)

    def grow(self, count: int) -> None:
        self.count += count
        self.left += count
        if self.done is not None:
            self.done.extend(bytes(count))

    def mark(self, low: int, high: int) -> int:
        """Mark the indices from *low* to below *high* as done; return how many were not."""
        if self.done is None:
            low = max(low, self.prefix)
            if high <= low:
                return 0
            if low == self.prefix:
                self.prefix = high
                self.left -= high - low
                return high - low
            self.done = bytearray(self.count)
            self.done[: self.prefix] = b"\1" * self.prefix
        fresh = high - low - self.done.count(1, low, high)
        if fresh:
            self.done[low:high] = b"\1" * (high - low)
            self.left -= fresh
            if low <= self.prefix < high:
                hole = self.done.find(0, high)
                self.prefix = self.count if hole < 0 else hole
        return fresh

    def cut(self, count: int) -> int:
        """Keep the first *count*; return how many of the rest were not done."""
        before = self.left
        done = min(self.prefix, count) if self.done is None else self.done.count(1, 0, count)
        if self.done is not None:
            del self.done[count:]
        if self.offsets is not None:
            self.offsets, self.own = list(self.offsets[:count]), True
        self.count, self.prefix, self.left = count, min(self.prefix, count), count - done
        return before - self.left


class Tracker:
    """Deliveries and commits of one claim, from the offset it started at.

    >>> tracker = Tracker(0)
    >>> tracker.deliver(range(6))
    >>> [(tracker.commit(offset), tracker.current)[1] for offset in (0, 2, 1, 3, 4, 5)]
    [1, 1, 3, 4, 5, 6]
    """

    __slots__ = ("_blocks", "_firsts", "_head", "outstanding", "position", "start")

    def __init__(self, offset: int) -> None:
        self.start = self.position = offset
        self.outstanding = 0
        self._blocks: list[_Block] = []
        self._firsts: list[int] = []
        self._head = 0

    @property
    def current(self) -> int:
        """Return the offset to commit: the first that is delivered and not done, else the next to deliver."""
        if self._head == len(self._blocks):
            return self.position
        block = self._blocks[self._head]
        return block.at(block.prefix)

    def deliver(self, offsets: range | Sequence[int]) -> None:
        """Note messages as handed out: ascending, after all that was noted before."""
        count = len(offsets)
        if not count:
            return
        first, last = offsets[0], offsets[-1]
        assert first >= self.position, f"offset {first} delivered after {self.position - 1}"
        assert last - first >= count - 1, "offsets not ascending"
        contiguous = last - first == count - 1
        self.outstanding += count
        self.position = last + 1
        tail = self._blocks[-1] if self._head < len(self._blocks) else None
        if tail is not None and tail.count + count <= LIMIT_BLOCK:
            if tail.offsets is None and contiguous and tail.first + tail.count == first:
                tail.grow(count)
                return
            if tail.own and count <= LIMIT_SMALL:
                tail.offsets.extend(offsets)  # type: ignore[union-attr]
                tail.grow(count)
                return
        if contiguous and (count > 1 or tail is None or tail.last + 1 == first):
            block = _Block(first, count, None, own=False)
        else:
            own = count <= LIMIT_SMALL
            block = _Block(first, count, list(offsets) if own else offsets, own=own)
        self._blocks.append(block)
        self._firsts.append(first)

    def skip_to(self, offset: int) -> None:
        """Note that nothing below *offset* is still to be delivered."""
        self.position = max(self.position, offset)

    def withdraw(self, offset: int) -> None:
        """Forget the messages from *offset* on: they were not handed out after all."""
        while self._head < len(self._blocks):
            block = self._blocks[-1]
            keep = block.below(offset)
            if keep == block.count:
                break
            self.outstanding -= block.cut(keep)
            if keep:
                # also when all of it is done: those before it may not be, and the finished offsets are still
                # known
                break
            self._blocks.pop()
            self._firsts.pop()
        self._pop()
        self.position = max(self.start, min(self.position, offset))

    def commit(self, offset: int) -> bool:
        """Note a message as done; return whether it was not before.

        Raises CommitError for one that was never delivered.
        """
        block = self._blocks[self._head] if self._head < len(self._blocks) else None
        index = -1 if block is None else block.find(offset)
        if index < 0:
            block, index = self._search(offset)
            if block is None:
                return False
        assert block is not None
        if block.done is None and index == block.prefix:  # in order: nearly every commit there is
            block.prefix += 1
            block.left -= 1
            self.outstanding -= 1
        elif not block.mark(index, index + 1):
            return False
        else:
            self.outstanding -= 1
        if not block.left:
            self._pop()
        return True

    def commit_many(self, offsets: range | Sequence[int]) -> int:
        """Note messages as done, all or (with CommitError) none; return how many were not before.

        A `range` means all delivered messages within it; it must lie within the delivered offsets. Fast for
        ranges and for lists that are contiguous or were given to `deliver` as they are.
        """
        if not offsets:
            return 0
        if isinstance(offsets, range) and offsets.step == 1:
            return self._commit_range(offsets.start, offsets.stop)
        first, last = offsets[0], offsets[-1]
        at = bisect_right(self._firsts, first, self._head) - 1
        if at >= self._head:
            block = self._blocks[at]
            if (
                block.first == first
                and block.count == len(offsets)
                and (block.offsets is offsets or block.offsets == offsets)
            ):
                return self._mark(block, 0, block.count)
            if (
                block.offsets is None
                and last < block.first + block.count
                and list(offsets) == list(range(first, last + 1))
            ):
                return self._mark(block, first - block.first, last + 1 - block.first)
        for offset in offsets:
            self._search(offset)
        return sum(map(self.commit, offsets))

    def _commit_range(self, first: int, end: int) -> int:
        if first < self.start or end > self.position:
            raise CommitError(
                f"offsets {first} to {end - 1} were not all delivered under this claim, which has delivered"
                f" {self.start} to {self.position - 1}"
            )
        fresh = 0
        at = max(self._head, bisect_right(self._firsts, first, self._head) - 1)
        touched = []
        while at < len(self._blocks) and self._firsts[at] < end:
            touched.append(self._blocks[at])
            at += 1
        for block in touched:
            fresh += self._mark(block, block.below(first), block.below(end))
        return fresh

    def _mark(self, block: _Block, low: int, high: int) -> int:
        fresh = block.mark(low, high)
        self.outstanding -= fresh
        if not block.left:
            self._pop()
        return fresh

    def _pop(self) -> None:
        """Forget the blocks at the head that are done."""
        while self._head < len(self._blocks) and not self._blocks[self._head].left:
            self._head += 1
        if self._head == len(self._blocks):
            self._blocks.clear()
            self._firsts.clear()
            self._head = 0
        elif self._head > LIMIT_POPPED:
            del self._blocks[: self._head]
            del self._firsts[: self._head]
            self._head = 0

    def _search(self, offset: int) -> tuple[_Block | None, int]:
        """Return block and index of *offset*; no block when it is done and forgotten.

        CommitError when it was never delivered.
        """
        if self.start <= offset < self.current:
            return None, -1
        at = bisect_right(self._firsts, offset, self._head) - 1
        if at >= self._head:
            block = self._blocks[at]
            if (index := block.find(offset)) >= 0:
                return block, index
        raise CommitError(
            f"offset {offset} was never delivered under this claim, which has delivered {self.start} to"
            f" {self.position - 1}"
        )

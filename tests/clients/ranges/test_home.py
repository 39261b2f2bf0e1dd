"""The state that a partition of the ranges' log has given so far, and the records that its rows need."""

from __future__ import annotations

import pytest

from holdfast.clients.ranges.home import RangeHome
from holdfast.core.ranges import Base, Keep, Ranges, Take, Wish, range_key

KEYS = {range_key("g", "t", partition): partition for partition in (0, 3)}
OURS, LEASE_MS = range_key("g", "t", 3), 1_000


def new_home() -> RangeHome:
    home = RangeHome(LEASE_MS)
    for key, partition in KEYS.items():
        home.add(key, partition)
    return home


class WrittenLog:
    """Wishes about the row of partition 3, as a home has read them, from offset *begin* on."""

    def __init__(self, begin: int = 0) -> None:
        self.home, self.end = new_home(), begin
        self.records: list[tuple[int, Wish]] = []

    def write(self, wish: Wish) -> bool:
        self.records.append((self.end, wish))
        self.end += 1
        return self.read(self.home, self.records[-1])

    @staticmethod
    def read(home: RangeHome, record: tuple[int, Wish]) -> bool:
        offset, wish = record
        home.next = offset + 1
        return home.fold(OURS, wish, offset, 0)

    def read_from(self, begin: int) -> RangeHome:
        home = new_home()
        for record in self.records:
            if record[0] >= begin:
                self.read(home, record)
        return home


@pytest.mark.parametrize(
    ("begin", "end", "missed"),
    [
        (0, 3, False),
        (3, 3, False),  # all that was read is gone, and nothing else
        (4, 4, True),
        (4, 9, True),
        (0, 2, True),  # it ends before the offset read so far: it is another log
    ],
)
def test_a_log_that_begins_after_the_offset_read_or_ends_before_it_has_lost_something(
    begin: int, end: int, missed: bool
) -> None:
    log = WrittenLog()
    assert not log.home.has_missed(7, 9), "nothing was read yet"
    log.write(Base(-1, Ranges(0)))
    log.write(Take(0, 10, "a", "ia"))
    log.write(Take(10, 20, "a", "ia"))
    assert log.home.has_missed(begin, end) is missed
    log.home.forget()
    assert not log.home.has_missed(begin, end)
    assert not log.home.rows


def test_a_row_that_is_written_again_is_whole_for_a_reader_that_begins_there() -> None:
    log = WrittenLog()
    log.write(Base(-1, Ranges(5)))
    log.write(Take(5, 10, "a", "ia"))
    assert not log.home.lacks(3, 0)
    assert log.home.lacks(3, 1)
    assert log.home.lacks(3, log.end)
    begin = log.end
    assert not log.write(Take(5, 10, "b", "ib")), "it is not free"
    assert log.write(log.home.base(3)), "it follows the row's last record, though that did not count"
    assert not log.home.lacks(3, begin)
    found = log.read_from(begin)
    assert found.rows[3].row == log.home.rows[3].row
    assert log.write(Keep(5, 1, "ia", 10))
    assert log.read_from(begin).rows[3].row == Ranges(10)


def test_who_writes_a_row_that_we_have_did_not_find_it() -> None:
    log = WrittenLog()
    assert not log.home.is_begun_by(OURS, Base(-1, Ranges(5)))
    log.write(Base(-1, Ranges(5)))
    assert log.home.is_begun_by(OURS, Base(-1, Ranges(2)))
    assert not log.home.is_begun_by(OURS, log.home.base(3))
    assert not log.home.is_begun_by(range_key("g", "t", 0), Base(-1, Ranges(5)))
    assert not log.home.is_begun_by("another/t/0", Base(-1, Ranges(5)))

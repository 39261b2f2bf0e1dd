"""The broker of a simulation: coordination logs with the broker's own clock, data that grows, and the way
of frames to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple, cast

from holdfast.core.claims.claim_rows import Claim, GuardedRow
from holdfast.core.claims.compat import CompatClaim, fold_compat
from holdfast.core.claims.frames import Frame, Heartbeat, ReleaseGroup, ReleasingPartition
from holdfast.core.claims.guarded import fold_guarded
from holdfast.core.engine.state.rows import Rows
from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.timeline import BEGAN_S, Timeline

if TYPE_CHECKING:
    from tests.simulation.checks import Checks

KEYS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """Quality of the network. Delays are one way, in seconds; chances are of each frame."""

    delay_low_s: float
    delay_high_s: float
    send_timeout_s: float
    repeat_within_s: float
    drop: float = 0.0
    unknown: float = 0.0
    repeat: float = 0.0
    clock_rate: float = 1.0


class Stay(NamedTuple):
    """The present or last owner of a claim, the number of that owner, and the last reset that gave the claim
    back.
    """

    instance_id: str
    epoch: int
    reset_by: str | None


class Committed(NamedTuple):
    """The committed offset in `__consumer_offsets` of a partition."""

    offset: int
    mark: int | None


class Log:
    """One partition of the coordination topic, with both views of it as they truly are."""

    __slots__ = ("at_ms", "compat", "down", "down_until_s", "index", "lead_s", "readers", "records", "rows")

    def __init__(self, index: int) -> None:
        self.index = index
        self.records: list[tuple[Frame, int]] = []
        self.rows: dict[str, GuardedRow] = {}
        self.compat: dict[str, CompatClaim] = {}
        self.readers: list[Callable[[], None]] = []
        self.at_ms = -1
        self.lead_s = 0.0
        self.down_until_s = 0.0
        self.down: list[tuple[float, float]] = []


class Broker:
    """All logs, and the data partitions."""

    def __init__(
        self,
        timeline: Timeline,
        draws: Random,
        weather: Weather,
        *,
        group: str,
        logs: int,
        stale_after_s: int,
    ) -> None:
        self.timeline, self.weather, self.group, self.stale_after_s = timeline, weather, group, stale_after_s
        self.draws = draws
        self.logs = [Log(index) for index in range(logs)]
        self.latest: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, Committed] = {}
        self._made: Counter[str] = Counter()
        self.checks: Checks | None = None
        self.with_go = False

    # -- coordination

    def clock_s(self, log: Log) -> float:
        """Return the time by the clock of the broker that leads *log*."""
        return BEGAN_S + self.timeline.now_s * self.weather.clock_rate + log.lead_s

    def clock_high_s(self) -> float:
        """Return the time by the clock of a broker that no change of leaders has set back. Members believe
        the latest time that they have seen.
        """
        return BEGAN_S + self.timeline.now_s * self.weather.clock_rate

    def append(self, index: int, frame: Frame) -> None:
        """Append *frame*: from here on every reader sees it, at this offset."""
        log = self.logs[index]
        at_ms = int(self.clock_s(log) * 1000)
        log.records.append((frame, at_ms))
        log.at_ms = max(log.at_ms, at_ms)
        rows = cast(Rows[GuardedRow], log.rows)
        checks = self.checks
        assert checks is not None
        if isinstance(frame, ReleaseGroup):
            fold_guarded(rows, frame, log.at_ms, self.stale_after_s)
            checks.on_pause(log, frame)
        else:
            key = f"{frame.group_id}/{frame.topic}/{frame.partition}"
            before = log.rows.get(key)
            compat = log.compat.get(key)
            fold_guarded(rows, frame, log.at_ms, self.stale_after_s)
            if self.with_go:
                fold_compat(cast(Rows[CompatClaim], log.compat), frame, at_ms)
            if frame.group_id == self.group:
                checks.on_frame(
                    log, frame, cast("Claim | None", before), cast("Claim | None", log.rows.get(key)), compat
                )
        for told in log.readers:
            told()

    def stay(self, frame: Frame, log: int) -> Stay:
        """Return the present stay of the claim that *frame* is about."""
        assert not isinstance(frame, ReleaseGroup)
        place = TopicPartition(frame.topic, frame.partition)
        row, ledger = self.row(log, place), None if self.checks is None else self.checks.ledgers.get(place)
        reset_by = None if ledger is None else ledger.reset_by
        return Stay("", 0, reset_by) if row is None else Stay(row.instance_id, row.epoch, reset_by)

    def row(self, log: int, place: TopicPartition) -> Claim | None:
        """Return the claim's row in the guarded view as it truly is."""
        return self.logs[log].rows.get(f"{self.group}/{place.topic}/{place.partition}")  # type: ignore[return-value]

    def take_down(self, index: int, for_s: float) -> None:
        """Nothing is appended to the log, and nothing read from it, for a while."""
        log, now_s = self.logs[index], self.timeline.now_s
        log.down_until_s = max(log.down_until_s, now_s + for_s)
        log.down.append((now_s, log.down_until_s))

    def step_back(self, index: int, by_s: float) -> None:
        """Another broker leads the log now, and its clock is late."""
        self.logs[index].lead_s -= by_s

    def delay_s(self) -> float:
        weather = self.weather
        return weather.delay_low_s + (weather.delay_high_s - weather.delay_low_s) * self.draws.random()

    # -- data

    def grow(self, place: TopicPartition, by: int) -> None:
        self.latest[place] = self.latest.get(place, 0) + by

    def mark(self, place: TopicPartition) -> int:
        """Return which topic of its name there is."""
        return 2 + self._made[place.topic.partition("~lane-")[0]]

    def make_again(self, topic: str) -> None:
        """Delete *topic*, a topic of data, and make it again, empty."""
        self._made[topic] += 1
        for place in self.latest:
            if place.topic == topic:
                self.latest[place] = 0


def key_of(place: TopicPartition, offset: int) -> int:
    """Return the key of a message: some number that follows from where it lies."""
    return (((offset * 2_654_435_761 + place.partition * 40_503) & 0xFFFF_FFFF) >> 16) % KEYS


class Wire:
    """Delivers the frames of one process to the broker: in order for each log, late when the network is cut,
    some never, some twice.
    """

    __slots__ = ("_broker", "_draws", "_last_s", "_timeline", "blocked_until_s", "fault", "told")

    def __init__(
        self, broker: Broker, draws: Random, told: Callable[[int, bool], None], fault: Callable[[], None]
    ) -> None:
        self._broker, self._draws, self._timeline = broker, draws, broker.timeline
        self._last_s: dict[int, float] = {}
        self.blocked_until_s = 0.0
        self.told, self.fault = told, fault

    def send(self, frame: Frame, log: int, send_id: int) -> None:
        """Send a frame; *told* is called with its outcome."""
        timeline, weather = self._timeline, self._broker.weather
        now_s = timeline.now_s
        blocked_s = self.blocked_until_s
        at_s = (max(now_s, blocked_s)) + self._broker.delay_s()
        last_s = self._last_s.get(log, 0.0)
        at_s = max(at_s, last_s)
        self._last_s[log] = at_s
        deadline_s = now_s + weather.send_timeout_s
        if at_s > deadline_s:
            timeline.at(deadline_s, self.told, send_id, False)
        timeline.at(at_s, self._arrive, frame, log, send_id, deadline_s)

    def _arrive(self, frame: Frame, log: int, send_id: int, deadline_s: float) -> None:
        broker, timeline, draws, weather = self._broker, self._timeline, self._draws, self._broker.weather
        now_s, down_until_s = timeline.now_s, broker.logs[log].down_until_s
        if down_until_s > now_s:
            if down_until_s > deadline_s >= now_s:
                timeline.at(deadline_s, self.told, send_id, False)
            timeline.at(down_until_s, self._arrive, frame, log, send_id, deadline_s)
            return
        late = now_s > deadline_s
        if late and draws.random() < 0.5:
            return  # the client had given it up before it left
        if draws.random() < weather.drop:
            self.fault()
            timeline.after(broker.delay_s(), self.told, send_id, False)
            return
        broker.append(log, frame)
        if draws.random() < weather.repeat:
            timeline.after(
                draws.random() * weather.repeat_within_s, self._repeat, frame, log, broker.stay(frame, log)
            )
        if not late:
            unknown = draws.random() < weather.unknown
            timeline.after(broker.delay_s(), self.told, send_id, not unknown)

    def _repeat(self, frame: Frame, log: int, stay: Stay) -> None:
        """Append *frame* once more, unless it would be taken for one of a later stay.

        Members write by idempotent producers, which repeat nothing, so that is more than can occur. The fold
        accepts it all the same, except for two frames that no reader can distinguish from those of the same
        process's present stay: a release from before it claimed again, and a heartbeat from before a reset
        after which it did (PROTOCOL.md#frames).
        """
        broker = self._broker
        if broker.logs[log].down_until_s > self._timeline.now_s:
            return
        now = broker.stay(frame, log)
        anew = now.instance_id == frame.instance_id and now != stay
        if anew and (
            isinstance(frame, ReleasingPartition)
            or (isinstance(frame, Heartbeat) and now.reset_by != stay.reset_by)
        ):
            return
        broker.append(log, frame)

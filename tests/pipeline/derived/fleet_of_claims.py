"""A fleet that works on a thousand partitions while one member dies, one is restarted and one leaves: its
frames, and the true owner of each partition at each time.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

from holdfast.core.claims.frames import ClaimingPartition, Frame, Heartbeat, ReleasingPartition

BEGIN_S = 1_764_000_000
STALE_S = 120
DIES_S, RESTARTS_S, LEAVES_S, END_S = 600, 1_200, 1_800, 2_400


@dataclass(slots=True)
class SimulatedFleet:
    """*truth* has (client, instance, from, until) of each partition, in s since the beginning; the last one
    of each is not over.
    """

    members: int = 8
    partitions: int = 1_000
    seed: int = 1
    frames: list[tuple[Frame, int]] = field(default_factory=list)
    truth: dict[int, list[tuple[str, str, int, int | None]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    signs: dict[int, int] = field(default_factory=dict)

    def run(self) -> None:
        chance = random.Random(self.seed)
        owner = {partition: f"m{partition % self.members}" for partition in range(self.partitions)}
        process = {f"m{number}": 1 for number in range(self.members)}
        offsets, events = dict.fromkeys(owner, 0), list[tuple[int, int, int, str]]()
        for partition, client in owner.items():
            self._claim(0, partition, client, process, offsets)
        for second in range(20, END_S, 20):
            for partition in range(second // 20 % 3, self.partitions, 3):  # a heartbeat a minute
                self._beat(second, partition, owner, process, offsets, chance)
            if second == DIES_S:
                process["m1"] = 0
                events += [
                    (DIES_S + STALE_S + 40 + chance.randrange(1, 60), partition, 1, "")
                    for partition in _of(owner, "m1")
                ]
            if second == RESTARTS_S:
                process["m2"] = 2
                for partition in _of(owner, "m2"):
                    self._restart(second, partition, process, offsets)
            if second == LEAVES_S:
                for partition in _of(owner, "m3"):
                    self._leave(second, partition, process, offsets)
                    events.append((LEAVES_S + chance.randrange(1, 15), partition, 3, ""))
            for due in [each for each in events if second <= each[0] < second + 20]:
                heir = chance.choice(["m4", "m5", "m6", "m7"])
                owner[due[1]] = heir
                self._claim(due[0], due[1], heir, process, offsets)
        self.frames.sort(key=lambda each: each[1])

    def _names(self, partition: int, client: str, process: dict[str, int]) -> tuple[str, str, str, str, int]:
        return f"{client}-{process[client]}", client, "billing", "orders", partition

    def _put(self, second: int, frame: Frame) -> None:
        self.frames.append((frame, (BEGIN_S + second) * 1_000 + 7))
        if isinstance(frame, Heartbeat | ClaimingPartition):
            self.signs[frame.partition] = second

    def _claim(
        self, second: int, partition: int, client: str, process: dict[str, int], offsets: dict[int, int]
    ) -> None:
        if self.truth[partition] and self.truth[partition][-1][3] is None:
            was = self.truth[partition].pop()
            self.truth[partition].append((*was[:3], self.signs[partition] + STALE_S))
        names = self._names(partition, client, process)
        self._put(second, ClaimingPartition(BEGIN_S + second, *names))
        self._put(second, Heartbeat(BEGIN_S + second, *names, offsets[partition]))
        self.truth[partition].append((client, names[0], second, None))

    def _beat(
        self,
        second: int,
        partition: int,
        owner: dict[int, str],
        process: dict[str, int],
        offsets: dict[int, int],
        chance: random.Random,
    ) -> None:
        client = owner[partition]
        if not process[client] or self.truth[partition][-1][3] is not None:
            return
        offsets[partition] += chance.randrange(50)
        self._put(
            second, Heartbeat(BEGIN_S + second, *self._names(partition, client, process), offsets[partition])
        )

    def _restart(self, second: int, partition: int, process: dict[str, int], offsets: dict[int, int]) -> None:
        names = self._names(partition, "m2", process)
        self._put(second, Heartbeat(BEGIN_S + second, *names, offsets[partition]))
        was = self.truth[partition].pop()
        self.truth[partition] += [(*was[:3], second), ("m2", names[0], second, None)]

    def _leave(self, second: int, partition: int, process: dict[str, int], offsets: dict[int, int]) -> None:
        self._put(
            second,
            ReleasingPartition(BEGIN_S + second, *self._names(partition, "m3", process), offsets[partition]),
        )
        was = self.truth[partition].pop()
        self.truth[partition].append((*was[:3], second))


def _of(owner: dict[int, str], client: str) -> list[int]:
    return [partition for partition, each in owner.items() if each == client]

"""Periodic checks of rules with a time limit: everything that should have happened by now."""

from __future__ import annotations

from holdfast.core.claims.staleness import is_live, is_reserved
from holdfast.core.kafka.topic_partition import TopicPartition
from tests.simulation.checks import BALANCE, FREE, LIMIT_STALLED_AUDITS, PAUSED, STALLED, TWINS, Checks
from tests.simulation.ledger import Ledger
from tests.simulation.timeline import BEGAN_S
from tests.simulation.trace import WHOLE
from tests.simulation.units import data_place, offsets_of
from tests.support.go_claims import compat_claimed


class Auditor(Checks):
    """The checks of each step, and `audit` for those with bounds in time."""

    def audit(self) -> None:
        """Check everything that should have happened by now."""
        now_s = self.timeline.now_s
        paused = self.is_paused()
        if self.pause_since_s is not None and not paused:
            self._resumed()
        for node in self.nodes.values():
            limit = node.settings.maximum_claims
            if node.alive and limit and node.member is not None and node.member.load >= limit:
                node.full_at_s = now_s
        if not paused:
            self._audit_stalled(now_s)
        if self.balanced:
            self._audit_balance(now_s)
        else:
            for ledger in self.ledgers.values():
                self._audit_free(ledger, now_s, paused)
        if paused and self.pause_since_s is not None:
            self._audit_paused(now_s)
        self._audit_twins(now_s)

    def _is_free(self, ledger: Ledger) -> bool:
        log = self.broker.logs[ledger.log]
        row = self.broker.row(ledger.log, ledger.place)
        if self.broker.with_go:
            # Our members take a partition that is free in both views; one of the Go library takes it by its
            # own clock.
            compat = log.compat.get(f"{self.broker.group}/{ledger.place.topic}/{ledger.place.partition}")
            now_s = int(BEGAN_S + self.timeline.now_s)
            if any(compat_claimed(compat, now_s + skew_s) for skew_s in (-10, 0, 10)):
                return False
        if row is None:
            return True
        return not is_reserved(row) and not is_live(
            row, int(self.broker.clock_s(log)), self.broker.stale_after_s
        )

    def _audit_free(self, ledger: Ledger, now_s: float, paused: bool) -> None:
        """A free partition is claimed within its bound, if any member can claim it."""
        if paused or not self._is_free(ledger):
            ledger.free_since_s = None
            return
        if ledger.free_since_s is None:
            ledger.free_since_s = now_s
        since_s = now_s - self.bounds.free_s
        if ledger.free_since_s > since_s:
            return
        able = [node for node in self.nodes.values() if node.can_claim(ledger.place, since_s, now_s)]
        if self.whole_topic and ledger.place.partition:
            key = self.ledgers[TopicPartition(ledger.place.topic, 0)]
            able = [node for node in able if node.name == key.owner and key.owner_since_s <= since_s]
        if able:
            free_s = now_s - ledger.free_since_s
            raise self.trace.fail(
                FREE, ledger.place, f"free for {free_s:.1f} s, and {able[0].name} does not claim it"
            )

    def _audit_balance(self, now_s: float) -> None:
        """When no member came or left and no fault occurred for long enough, everything is claimed, and
        evenly.
        """
        since_s = now_s - self.bounds.settle_s
        alive = [node for node in self.nodes.values() if node.alive and node.error is None]
        if not alive or not all(node.healthy(since_s, now_s) and not node.leaving for node in alive):
            return
        if any(since_s < node.died_s <= now_s for node in self.nodes.values()):
            return
        held = dict.fromkeys((node.name for node in alive), 0)
        for ledger in self.ledgers.values():
            if ledger.owner not in held or self._is_free(ledger):
                raise self.trace.fail(
                    BALANCE,
                    ledger.place,
                    f"nobody of {', '.join(held)} holds it {self.bounds.settle_s:.1f} s after the last"
                    " change",
                )
            held[ledger.owner] += 1
        if max(held.values()) - min(held.values()) > 1:
            raise self.trace.fail(BALANCE, WHOLE, f"the members hold {held}")

    def _audit_stalled(self, now_s: float) -> None:
        """The owner of a partition works on it.

        The owner is the one that the log names, if its claim has not lapsed, or one that believes that it
        owns the partition. An owner that has given up a lapsed claim has nothing to hand out. Another check
        covers that a member takes a lapsed claim.
        """
        for ledger in self.ledgers.values():
            node = self.nodes.get(ledger.owner or "")
            since_s = now_s - self.bounds.interval_s
            if (
                node is None
                or not node.healthy(since_s, now_s)
                or ledger.owner_since_s > since_s
                or node.is_full(ledger.place)
            ):
                ledger.stalled = 0
                continue
            latest, position = (
                self.broker.latest.get(data_place(ledger.place), 0),
                node.position(ledger.place),
            )
            if position != ledger.position or not offsets_of(ledger.place, position, latest):
                ledger.stalled, ledger.position = 0, position
                continue
            if self._is_free(ledger) and not node.holds(ledger.place):
                ledger.stalled = 0
                continue
            ledger.stalled += 1
            if ledger.stalled > LIMIT_STALLED_AUDITS:
                text = (
                    f"{node.name} holds it and hands out nothing from {position} on, there is up to {latest}"
                )
                raise self.trace.fail(STALLED, ledger.place, text)

    def _audit_paused(self, now_s: float) -> None:
        """No member takes a partition while its group is paused; an administrator may."""
        assert self.pause_since_s is not None
        for ledger in self.ledgers.values():
            node = self.nodes.get(ledger.owner or "")
            if node is None or self._is_free(ledger):
                continue
            taken_s = ledger.owner_since_s - self.pause_since_s
            if taken_s > self.bounds.pause_s and node.was_healthy(self.pause_since_s, ledger.owner_since_s):
                raise self.trace.fail(
                    PAUSED, ledger.place, f"{node.name} took it {taken_s:.2f} s after the pause of its group"
                )
            row = self.broker.row(ledger.log, ledger.place)
            if row is not None and row.current_offset is None:
                # claimed and never begun: a release must name an offset and there is none, so it lapses,
                # which no heartbeat puts off
                continue
            held_s = now_s - self.pause_since_s
            if held_s > self.bounds.pause_s + self.bounds.interval_s and node.healthy(
                self.pause_since_s, now_s
            ):
                raise self.trace.fail(
                    PAUSED,
                    ledger.place,
                    f"{node.name} still holds it {held_s:.2f} s after the pause of its group",
                )

    def _audit_twins(self, now_s: float) -> None:
        """Of two processes under one client id, one works."""
        since_s = now_s - self.bounds.twins_s
        holders: dict[str, tuple[str, float]] = {}
        for ledger in self.ledgers.values():
            node = self.nodes.get(ledger.owner or "")
            if node is None or ledger.owner_since_s > since_s or not node.healthy(since_s, now_s):
                continue
            other = holders.setdefault(node.client, (node.name, ledger.owner_since_s))
            if other[0] != node.name:
                raise self.trace.fail(
                    TWINS, ledger.place, f"{other[0]} and {node.name} both hold claims as {node.client}"
                )

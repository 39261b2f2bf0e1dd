"""The settings of a claim client, and every constant that follows from the one knob, the heartbeat interval
(PROTOCOL.md#the-member).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from holdfast.core.claims.claim_keys import RESET_INSTANCE
from holdfast.core.claims.frames import HEARTBEAT_INTERVAL_S, check_id
from holdfast.errors import ConfigError

STALE_INTERVALS = 2.0
JITTER_LOW_INTERVALS = 0.25
JITTER_HIGH_INTERVALS = 0.75
CLAIM_LOOP_INTERVALS = 0.05
COOLDOWN_INTERVALS = 1.0
EXPIRED_INTERVALS = 1.0
IDLE_INTERVALS = 1.0
ATTEMPT_INTERVALS = 0.5
RETRY_INTERVALS = 0.05
DRAIN_INTERVALS = 0.25
SETTLE_INTERVALS = 0.25
LEASE_MARGIN_INTERVALS = 0.05
LEASE_ROUNDING_S = 1.0
LIMIT_INTERVAL_S = 3600.0
HANDLER_TIMEOUT_S = 300.0
"""Kafka's default for max.poll.interval.ms."""
WARNED_AT = 0.5
"""The part of it after which an event warns of a handler."""
LIMIT_HANDLER_TIMEOUT_S = 7 * 86_400.0


class Delivery(StrEnum):
    """The price of a crash: some messages twice, or some never."""

    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


class OffsetReset(StrEnum):
    """The start of a group in a partition of which it has no offset, in the words of Kafka's
    auto.offset.reset.
    """

    EARLIEST = "earliest"
    LATEST = "latest"
    NONE = "none"
    """Nowhere: the member ends with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSettings:
    """One instance's subscription, limits and times.

    *client_id* is stable over restarts and unique in its group; *instance_id* is new for every process. All
    times follow from *heartbeat_interval_s*, which must be equal in the whole fleet: 60 s alongside Go
    members, 3 s stand-alone. Twice the interval must be a whole number of seconds, since the protocol knows
    no fractions.

    *maximum_claims* counts partitions, topics with *whole_topic*; 0 is no limit. *drain_s* is how long a
    release waits for messages in flight (None: a quarter of the interval); never longer than the claim is
    safe. *maximum_outstanding* bounds delivered and uncommitted messages of one claim. With *balanced*,
    nothing is claimed but what `aim` names. *skew_limit_s* is how far the clock may be from the broker's at
    the start (None: half the interval, at least 5 s). With *interop*, only partitions that are free in the Go
    library's view too are claimed, and a claim that another member holds in either view is given up. Turn
    *fast_reclaim* off where a process may freeze and be replaced under the same client id
    (PROTOCOL.md#two-processes-under-one-client-id).

    *handler_timeout_s* is how long the user may work on one message, or let messages wait, before the claim
    is given to others (as Kafka's max.poll.interval.ms; 0: for ever); a warning comes at half of it. With
    *release_if_behind* off and with *balanced* there is the warning only. With *interop* the Go library's
    rule counts instead: an owner that commits nothing for a heartbeat interval is wedged.

    *auto_offset_reset* says where a partition begins of which the group has no offset: one that was never
    claimed, or one of a topic that was deleted and made again, since the old offset does not belong to the
    new topic (PROTOCOL.md#topics-that-are-made-again).

    >>> settings = MemberSettings(group_id="g", client_id="c", instance_id="i", topics=("orders",), heartbeat_interval_s=3.0)
    >>> settings.stale_after_s, round(settings.lease_s, 3), settings.drain_within_s
    (6, 4.85, 0.75)
    """  # noqa: E501

    group_id: str
    client_id: str
    instance_id: str
    topics: tuple[str, ...]
    heartbeat_interval_s: float = float(HEARTBEAT_INTERVAL_S)
    whole_topic: bool = False
    greedy: bool = False
    fast_reclaim: bool = True
    maximum_claims: int = 0
    release_if_behind: bool = True
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    drain_s: float | None = None
    maximum_outstanding: int = 100_000
    skew_limit_s: float | None = None
    interop: bool = False
    balanced: bool = False
    handler_timeout_s: float = HANDLER_TIMEOUT_S
    auto_offset_reset: OffsetReset = OffsetReset.EARLIEST

    def __post_init__(self) -> None:
        for field in ("group_id", "client_id", "instance_id"):
            check_id(field, getattr(self, field))
        if not self.topics or isinstance(self.topics, str):
            raise ConfigError(f"topics is {self.topics!r}: name at least one topic, as a tuple")
        if self.instance_id.startswith(RESET_INSTANCE):
            raise ConfigError(
                f"instance_id is {self.instance_id!r}: {RESET_INSTANCE!r} begins those of resets; choose"
                " another"
            )
        for topic in self.topics:
            check_id("topic", topic)
        if len(set(self.topics)) != len(self.topics):
            raise ConfigError(f"topics {', '.join(self.topics)}: a topic is named twice")
        interval_s = self.heartbeat_interval_s
        if not 1.0 <= interval_s <= LIMIT_INTERVAL_S or (STALE_INTERVALS * interval_s) % 1:
            raise ConfigError(
                f"heartbeat_interval_s is {interval_s:g}: use 1 to {LIMIT_INTERVAL_S:g} in steps of 0.5, the"
                " same in the whole fleet"
            )
        if self.maximum_claims < 0:
            raise ConfigError(f"maximum_claims is {self.maximum_claims}: use 0 for no limit")
        if self.maximum_outstanding < 1:
            raise ConfigError(
                f"maximum_outstanding is {self.maximum_outstanding}: at least one message must be allowed in"
                " flight"
            )
        if self.drain_s is not None and not 0 <= self.drain_s <= self.lease_s:
            raise ConfigError(
                f"drain_s is {self.drain_s:g}: a claim is safe for {self.lease_s:g} s; use 0 to"
                f" {self.lease_s:g}"
            )
        if not (self.handler_timeout_s == 0 or 1.0 <= self.handler_timeout_s <= LIMIT_HANDLER_TIMEOUT_S):
            raise ConfigError(
                f"handler_timeout_s is {self.handler_timeout_s:g}: use 1 to {LIMIT_HANDLER_TIMEOUT_S:g} s,"
                " longer than a handler takes, or 0 for no deadline"
            )
        if self.skew_limit_s is not None and not self.skew_limit_s >= LEASE_ROUNDING_S:
            raise ConfigError(
                f"skew_limit_s is {self.skew_limit_s:g}: times of the protocol are whole seconds, so it is at"
                " least 1"
            )

    @property
    def stale_after_s(self) -> int:
        """Return the age at which a claim is free, for `fold_guarded`."""
        return int(STALE_INTERVALS * self.heartbeat_interval_s)

    @property
    def lease_s(self) -> float:
        """Return for how long after *sending* a heartbeat that was accepted a message may be handed out.

        The log rounds times down, so a rival may count from up to a second before the append; the margin
        covers clocks that tick at different rates.
        """
        return self.stale_after_s - LEASE_ROUNDING_S - LEASE_MARGIN_INTERVALS * self.heartbeat_interval_s

    @property
    def drain_within_s(self) -> float:
        """Return how long a release waits for messages in flight."""
        return DRAIN_INTERVALS * self.heartbeat_interval_s if self.drain_s is None else self.drain_s

    @property
    def overdue_after_s(self) -> float:
        """Return for how long the user may work on one message."""
        return self.handler_timeout_s or inf

    @property
    def skew_within_s(self) -> float:
        """Return how far the clock may be from the broker's at the start."""
        return max(5.0, 0.5 * self.heartbeat_interval_s) if self.skew_limit_s is None else self.skew_limit_s

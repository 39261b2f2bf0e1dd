"""Deadlines of a claim consumer, and how often it asks the broker."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.core.claims.lanes import check_lanes
from holdfast.core.claims.resets import RESETS_TOPIC
from holdfast.core.groups.announcements import GROUPS_TOPIC
from holdfast.core.groups.assignors.types import AssignorName
from holdfast.core.member.settings import ATTEMPT_INTERVALS, MemberSettings
from holdfast.errors import ConfigError

STOP_SLACK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Deadlines, and how often the broker is asked, as parts of the heartbeat interval where that is what
    matters.
    """

    start_timeout_s: float = 60.0
    """Until the coordination partitions are read to their end."""
    request_timeout_s: float = 10.0
    stop_timeout_s: float = 0.0
    """Until all claims are given back; 0 for what a member takes at most, and STOP_SLACK_S."""
    flush_timeout_s: float = 30.0
    send_timeout_s: float = 0.0
    """The limit on a frame under way; 0 for the heartbeat interval."""
    poll_s: float = 0.02
    """The longest sleep of the coordinating thread."""
    follow_wait_ms: int = 20
    """The broker may hold back frames so long to send them together. A longer wait slows each protocol step
    but sends a large group's broker fewer requests.
    """
    health_lookup_intervals: float = 0.4
    """The interval at which the ends of the claimed logs are asked for, in heartbeat intervals."""
    partitions_lookup_s: float = 10.0
    """The interval at which partitions are counted, give or take a half: on a topic with a thousand of them
    the answer is large.
    """
    lanes: int = 0
    """Into how many lanes each partition is split, the same in the whole group; 0 for whole partitions."""
    compression: str = "none"
    resets_topic: str = RESETS_TOPIC
    """The topic on which resets of the group are decided."""

    def __post_init__(self) -> None:
        if self.lanes:
            check_lanes(self.lanes)
        if self.compression not in ("none", "gzip", "snappy"):
            raise ConfigError(
                f"compression is {self.compression!r:.200}: the Go library reads none, gzip and snappy"
            )
        for name in (
            "start_timeout_s",
            "request_timeout_s",
            "flush_timeout_s",
            "poll_s",
            "partitions_lookup_s",
        ):
            if not 0 < getattr(self, name) <= 3_600:
                raise ConfigError(
                    f"{name} is {getattr(self, name):g}: every wait has an end, use more than 0 and at most"
                    " 3600 seconds"
                )
        for name in ("stop_timeout_s", "send_timeout_s"):
            if not 0 <= getattr(self, name) <= 3_600:
                raise ConfigError(
                    f"{name} is {getattr(self, name):g}: use 0 for the default, else at most 3600 seconds"
                )
        if not 1 <= self.follow_wait_ms <= 1_000:
            raise ConfigError(f"follow_wait_ms is {self.follow_wait_ms}: use 1 to 1000")
        if not 0.01 <= self.health_lookup_intervals <= 1.0:
            raise ConfigError(
                f"health_lookup_intervals is {self.health_lookup_intervals:g}: use 0.01 to 1 heartbeat"
                " intervals"
            )

    def stop_within_s(self, member: MemberSettings) -> float:
        """Return how long a terminate may take."""
        return (
            self.stop_timeout_s
            or ATTEMPT_INTERVALS * member.heartbeat_interval_s + member.drain_within_s + STOP_SLACK_S
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """The settings of a consumer with `balanced=True` for its group."""

    groups_topic: str = GROUPS_TOPIC
    assignors: tuple[str, ...] | str = (AssignorName.COOPERATIVE_STICKY,)
    """By preference; the group uses the one most members prefer among those that all support."""
    static_id: str | None = None
    """Kafka's group.instance.id: the member says no farewell and finds its partitions again when it
    returns within the session.
    """
    session_s: float = 0.0
    """After so long a silence the member's part goes to others; 0 for twice the heartbeat interval."""

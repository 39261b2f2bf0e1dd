"""The arguments of a range consumer, checked before any of them is used."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.clients.claims.settings import check_group_name
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.config.client_arguments import (
    require_clock,
    require_name,
    require_number,
    require_topic,
    require_whole,
    settings_at,
)
from holdfast.core.member.settings import LIMIT_HANDLER_TIMEOUT_S
from holdfast.core.ranges import LIMIT_BLOCK_MESSAGES
from holdfast.errors import ConfigError

LIMIT_DELIVERIES = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeOptions:
    """The arguments of a `RangeConsumer`; ConfigError names the first that cannot be."""

    topic: str
    group: str
    client: str
    block_messages: int
    lease_s: float
    handler_timeout_s: float
    maximum_deliveries: int
    dead_letters: str | None
    ranges_topic: str | None
    request_timeout_s: float
    clock: Clock

    def __post_init__(self) -> None:
        if isinstance(self.topic, list | tuple):
            raise ConfigError(
                f"topic is {self.topic!r:.200}: write the name of one topic; a RangeConsumer for each shares"
                " out several"
            )
        require_topic("topic", self.topic)
        require_name("group", self.group)
        require_name("client", self.client)
        self._settle_whole("block_messages", LIMIT_BLOCK_MESSAGES)
        self._settle_seconds("lease_s", 1, 3_600)
        self._settle_handler_timeout()
        self._settle_whole("maximum_deliveries", LIMIT_DELIVERIES)
        self._settle_seconds("request_timeout_s", 0.001, 3_600)
        for name in ("dead_letters", "ranges_topic"):
            if (topic := getattr(self, name)) is not None:
                require_topic(name, topic)
        require_clock(self.clock)

    # Numbers are kept as Python's: the log of the ranges cannot hold NumPy's.

    def _settle_whole(self, name: str, high: int) -> None:
        object.__setattr__(self, name, require_whole(name, getattr(self, name), 1, high))

    def _settle_seconds(self, name: str, low: float, high: float) -> None:
        object.__setattr__(self, name, require_number(name, getattr(self, name), low, high))

    def _settle_handler_timeout(self) -> None:
        try:
            self._settle_seconds("handler_timeout_s", 0, LIMIT_HANDLER_TIMEOUT_S)
            unfit = 0 < self.handler_timeout_s < 1
        except ConfigError:
            unfit = True
        if unfit:
            raise ConfigError(
                f"handler_timeout_s is {self.handler_timeout_s!r:.200}: use 1 to {LIMIT_HANDLER_TIMEOUT_S:g}"
                " s, or 0 for no deadline"
            )

    def settings(self, kafka: Settings | str) -> Settings:
        """Return the settings that *kafka* is or names; ConfigError where the group is the application's
        own.
        """
        settings = settings_at(kafka)
        check_group_name(settings, self.group)
        return settings

    def topics(self, settings: Settings) -> tuple[str, str]:
        """Return the topic of the ranges and that of the dead letters; ConfigError unless these and the topic
        are three.
        """
        ranges_topic = self.ranges_topic or settings.ranges_topic
        dead_letters = self.dead_letters or f"{self.topic}.dead-letters"
        require_topic("dead_letters", dead_letters)
        if len({self.topic, ranges_topic, dead_letters}) < 3:
            raise ConfigError(
                f"topic {self.topic}, ranges_topic {ranges_topic} and dead_letters {dead_letters} must be"
                " three topics: what goes to the dead letters would come again"
            )
        return ranges_topic, dead_letters

"""The settings of a claim consumer: one flat list of names, each with a default."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, get_type_hints

import msgspec

from holdfast.clients.claims.claiming.fetcher import FetchSettings
from holdfast.clients.claims.options import EngineSettings, GroupSettings
from holdfast.clock import Clock
from holdfast.config import Settings
from holdfast.config.client_arguments import (
    require_clock,
    require_name,
    require_parts,
    require_topic,
    settings_at,
)
from holdfast.core.claims.lanes import ClaimNames, lane_named
from holdfast.core.member.settings import Delivery, MemberSettings, OffsetReset
from holdfast.core.member.state import Draws
from holdfast.errors import ConfigError, FrameError

_GIVEN_OTHERWISE = frozenset({"group_id", "client_id", "topics"})
_PARTS = (MemberSettings, EngineSettings, FetchSettings, GroupSettings)
NAMES = {
    declared.name: part
    for part in _PARTS
    for declared in fields(part)
    if declared.name not in _GIVEN_OTHERWISE
}
"""Every named setting of a claim consumer, and the part that has it."""
_TYPES: dict[str, Any] = {"topics": Sequence[str] | str, "group": str, "client": str} | {
    name: get_type_hints(part)[name] for name, part in NAMES.items()
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """All settings of a claim consumer, in the parts that use it."""

    kafka: Settings
    member: MemberSettings
    engine: EngineSettings
    feed: FetchSettings
    groups: GroupSettings


def consumer_settings(
    kafka: Settings | str, *, topics: Sequence[str], group: str, client: str, named: Mapping[str, Any]
) -> ConsumerSettings:
    """Return the settings that these amount to; ConfigError for a name that does not exist or a value that
    cannot be.

    >>> found = consumer_settings("127.0.0.1:9092", topics=["orders"], group="billing", client="billing-1", named={"greedy": True})
    >>> found.member.greedy, found.member.heartbeat_interval_s, len(found.member.instance_id)
    (True, 60.0, 8)
    """  # noqa: E501
    if isinstance(topics, str):  # a sequence too, of topics of one letter
        raise ConfigError(f"topics is {topics!r:.200}: write a list of topics: [{topics!r:.200}]")
    for name in named:
        if name not in NAMES:
            close = get_close_matches(name, [*NAMES, "topics", "group", "client"], 1)
            raise ConfigError(
                f"{name} is not a setting of a claim consumer"
                + (f"; did you mean {close[0]}?" if close else "")
            )
    if isinstance(topics, Iterable) and not isinstance(topics, list | bytes | Mapping):
        topics = tuple(topics)
    named = {name: float(each) if isinstance(each, float) else each for name, each in named.items()}
    given = {"topics": topics, "group": group, "client": client, **named}
    if (wrong := _of_wrong_type(given)) is not None:
        raise ConfigError(wrong)
    _require_names(topics, given)
    try:
        return _built(kafka, topics, group, client, named)
    except FrameError as error:
        raise ConfigError(str(error)) from error


def require_helpers(clock: Clock, draws: Draws | None) -> None:
    """Refuse a clock or a source of chance that is none."""
    require_clock(clock)
    if draws is not None:
        require_parts("draws", draws, "uniform", meant="a random.Random")


def _require_names(topics: Sequence[str], given: Mapping[str, Any]) -> None:
    """Refuse names that no frame and no topic can have; a pattern of topics begins with ^ (of a balanced
    group).
    """
    for name in ("group", "client", "instance_id", "static_id"):
        if given.get(name) is not None:
            require_name(name, given[name])
    for name in ("resets_topic", "groups_topic"):
        if name in given:
            require_topic(name, given[name])
    for topic in topics:
        if given.get("balanced") and topic.startswith("^"):
            require_name("topics", topic)
        elif lane_named(topic) is None:
            require_topic("topics", topic)


def _built(
    kafka: Settings | str, topics: Sequence[str], group: str, client: str, named: Mapping[str, Any]
) -> ConsumerSettings:
    parts: dict[type, dict[str, Any]] = {part: {} for part in _PARTS}
    for name, value in named.items():
        parts[NAMES[name]][name] = value
    member = parts[MemberSettings]
    if "delivery" in member:
        member["delivery"] = _delivery(member["delivery"])
    if "auto_offset_reset" in member:
        member["auto_offset_reset"] = _offset_reset(member["auto_offset_reset"])
    member.setdefault("instance_id", uuid.uuid4().hex[:8])
    engine = EngineSettings(**parts[EngineSettings])
    wanted = _claimed(tuple(topics), engine, member)
    settings = settings_at(kafka)
    check_group_name(settings, group)
    return ConsumerSettings(
        kafka=settings,
        member=MemberSettings(group_id=group, client_id=client, topics=wanted, **member),
        engine=engine,
        feed=FetchSettings(**parts[FetchSettings]),
        groups=GroupSettings(**parts[GroupSettings]),
    )


def _of_wrong_type(given: Mapping[str, Any]) -> str | None:
    """Return the fault of the first value that has not the type of its setting.

    >>> _of_wrong_type({"group": "billing", "heartbeat_interval_s": "3"})
    "heartbeat_interval_s cannot be '3': Expected `float`, got `str`"
    """
    for name, value in given.items():
        if name in ("delivery", "auto_offset_reset"):  # their enumerations refuse them
            continue
        try:
            msgspec.convert(value, _TYPES[name])
        except (msgspec.ValidationError, UnicodeEncodeError) as error:
            return f"{name} cannot be {value!r:.200}: {error}"
    return None


def check_group_name(settings: Settings, group: str) -> None:
    """Raise ConfigError when *group* has the name of the application, which is the name of its workers' own
    consumer group in Kafka.

    >>> check_group_name(Settings(app="billing"), "billing")
    Traceback (most recent call last):
    holdfast.errors.ConfigError: group is 'billing' and so is app: the workers of an application are a consumer group of that name in Kafka...
    """  # noqa: E501
    if group == settings.app:
        raise ConfigError(
            f"group is {group!r} and so is app: the workers of an application are a consumer group of that"
            " name in Kafka, whose coordinator refuses offsets from anybody else. Choose another group, or"
            " another app"
        )


def _claimed(topics: tuple[str, ...], engine: EngineSettings, member: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the claimed names: the topics, or the lanes of each."""
    for topic in topics:
        if lane_named(topic) is not None:
            raise ConfigError(
                f"topics names {topic!r:.200}, which is how a lane is claimed: name the topic itself, and set"
                " lanes"
            )
    if not engine.lanes:
        return topics
    if member.get("whole_topic"):
        raise ConfigError(
            "lanes and whole_topic=True: one splits partitions, the other keeps them together; choose one"
        )
    if member.get("balanced") and any(topic.startswith("^") for topic in topics):
        raise ConfigError(f"lanes and the pattern {topics[0]}: lanes are of topics known by name; name them")
    return ClaimNames(engine.lanes).all(topics)


def _offset_reset(given: object) -> OffsetReset:
    try:
        return OffsetReset(given)  # type: ignore[arg-type]
    except ValueError:
        choices = ", ".join(repr(each.value) for each in OffsetReset)
        raise ConfigError(f"auto_offset_reset {given!r:.100}: write one of {choices}") from None


def _delivery(value: object) -> Delivery:
    try:
        return Delivery(str(value))
    except ValueError:
        raise ConfigError(
            f"delivery is {value!r:.200}: use {' or '.join(repr(each.value) for each in Delivery)}"
        ) from None

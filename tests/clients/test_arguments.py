"""Values that cannot be, given to each argument of the public face: each is a ConfigError that names the
argument, and leaves nothing open.

A value of an argument's kind may be refused too, by its range; it is never an error deep inside.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import pytest

from holdfast import (
    BlockingClaimConsumer,
    BlockingTableClient,
    ClaimConsumer,
    OutboxWriter,
    Processor,
    RangeConsumer,
    SequencedProducer,
    Settings,
    TableClient,
    create_app,
)
from holdfast.clients.claims.settings import _TYPES, NAMES, consumer_settings
from holdfast.clients.ranges.options import RangeOptions
from holdfast.clock import system_clock
from holdfast.config.client_arguments import require_number, require_whole, settings_at
from holdfast.errors import ConfigError


class Some:
    pass


async def waits() -> None: ...


ODD: Mapping[str, Any] = {
    "None": None,
    "empty": "",
    "blank": " ",
    "7": 7,
    "-1": -1,
    "7.5": 7.5,
    "nan": float("nan"),
    "inf": float("inf"),
    "True": True,
    "bytes": b"x",
    "list": [],
    "list of 7": [7],
    "dict": {},
    "dict of 7": {7: 7},
    "object": object(),
    "NUL": "a\0b",
    "surrogate": "\ud800",
    "long": "x" * 100_000,
    "class": Some,
    "coroutine": waits,
}
WHOLE, NUMBER, SWITCH = {"7", "-1"}, {"7", "-1", "7.5", "inf"}, {"True"}
TEXT = {"empty", "blank", "long"}
NONE: set[str] = set()
NOTHING, EMPTY, CALLED = {"None"}, {"dict"}, {"None", "class"}
BY_TYPE: Mapping[Any, set[str]] = {
    bool: SWITCH,
    int: WHOLE,
    float: NUMBER,
    str: TEXT,
    Path: TEXT,
    type(None): {"None"},
}


def fold(rows: Any, event: Any, at_ms: int) -> None: ...


SETTINGS = Settings()
DECLARED: dict[str, Any] = {
    "name": "totals",
    "source": "orders",
    "decode": bytes.decode,
    "fold": fold,
    "row": int,
}
TOTALS: Processor[Any, Any] = Processor(**DECLARED)
CLAIMING = {"kafka": SETTINGS, "topics": ["orders"], "group": "billing", "client": "billing-1"}
RIGHT: Mapping[Callable[..., Any], dict[str, Any]] = {
    RangeConsumer: {"kafka": SETTINGS, "topic": "orders", "group": "resize", "client": "resize-1"},
    ClaimConsumer: CLAIMING,
    BlockingClaimConsumer: CLAIMING,
    TableClient: {"settings": SETTINGS, "processors": [TOTALS]},
    BlockingTableClient: {"settings": SETTINGS, "processors": [TOTALS]},
    SequencedProducer: {"settings": SETTINGS, "name": "billing"},
    OutboxWriter: {},
    Processor: DECLARED,
    create_app: {"processors": [TOTALS], "settings": SETTINGS},
    Settings: {},
}
"""The right arguments of each call."""
TABLES = {"processors": {"list", "dict"}, "earlier": {"list", "dict"}, "directory": {"None"}}
FITS: Mapping[Callable[..., Any], Mapping[str, set[str]]] = {
    RangeConsumer: {
        **dict.fromkeys(("block_messages", "maximum_deliveries"), WHOLE),
        **dict.fromkeys(("lease_s", "handler_timeout_s", "request_timeout_s"), NUMBER),
        **dict.fromkeys(("dead_letters", "ranges_topic"), NOTHING),
    },
    TableClient: TABLES,
    BlockingTableClient: TABLES,
    SequencedProducer: {"instance": TEXT, "timeout_s": NUMBER, "limit_unsure": WHOLE},
    OutboxWriter: {
        **dict.fromkeys(("key_encoder", "value_encoder"), CALLED),
        "notify": SWITCH,
        "limit_bytes": {"None", *WHOLE},
    },
    Processor: {
        **dict.fromkeys(("on", "time", "on_wake", "on_tick", "on_event", "route"), NOTHING),
        **dict.fromkeys(("tables", "migrate"), EMPTY),
        "version": WHOLE,
        "emits": {"list"},
        "reads": {"list"},
        "in_place": SWITCH,
    },
    create_app: {"processors": {"list"}, "settings": {"None"}},
}
"""The odd values that are of the kind of an argument; an argument that is missing here takes no odd value."""
REPEATS = 10
NAMES_ONLY = ("group", "client", "instance_id", "static_id", "resets_topic", "groups_topic")
"""Text that names something, of which no odd value does."""


def fits(made: Callable[..., Any], name: str) -> set[str]:
    if made is Settings and name in ("kafka", "spark_conf", "origins"):
        return {"dict", "dict of 7"} if name == "origins" else {"dict"}
    if made is Settings:
        return _of_type(get_type_hints(Settings)[name])
    if made in (ClaimConsumer, BlockingClaimConsumer) and name in NAMES:
        return _of_type(_TYPES[name]) - (TEXT if name in NAMES_ONLY else NONE)
    if name == "draws":
        return {"None"}
    return FITS.get(made, {}).get(name, NONE)


def _of_type(wanted: Any) -> set[str]:
    return NONE.union(*(BY_TYPE.get(each, NONE) for each in get_args(wanted) or (wanted,)))


def arguments(made: Callable[..., Any]) -> Iterator[str]:
    taken = inspect.signature(made).parameters.values()
    yield from (each.name for each in taken if each.kind is not inspect.Parameter.VAR_KEYWORD)
    if made in (ClaimConsumer, BlockingClaimConsumer):
        yield from NAMES


def open_things() -> tuple[int, int]:
    """Return how many threads, librdkafka's too, and files this process has."""
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))


def leaks(made: Callable[..., Any], given: dict[str, Any]) -> bool:
    """Return whether each refusal leaves a thread or file: those of other tests come and go at the same
    time.
    """
    threads, files = open_things()
    for _ in range(REPEATS):
        with suppress(ConfigError):
            made(**given)
    left = open_things()
    return left[0] >= threads + REPEATS or left[1] >= files + REPEATS


def wrongs_of(made: Callable[..., Any], name: str) -> Iterator[str]:
    """Give an argument each odd value; yield what became of those that were not treated as they must be."""
    for label, value in ODD.items():
        threads, files = open_things()
        try:
            thing = made(**{**RIGHT[made], name: value})
        except ConfigError as error:
            if name not in str(error):
                yield f"{name} {label}: not named in {error!s:.200}"
            if len(str(error)) > 1_000:
                yield f"{name} {label}: told in {len(str(error))} characters"
            left = open_things()
            if (left[0] > threads or left[1] > files) and leaks(made, {**RIGHT[made], name: value}):
                yield f"{name} {label}: refused, and left {left} threads and files of {(threads, files)}"
        except Exception as error:  # noqa: BLE001  what this is about
            yield f"{name} {label}: {type(error).__name__}: {error!s:.200}"
        else:
            if label not in fits(made, name):
                yield f"{name} {label}: taken"
            if isinstance(thing, SequencedProducer):
                with suppress(ConfigError):  # it was never opened
                    thing.close()


@pytest.mark.long
@pytest.mark.parametrize("made", RIGHT, ids=lambda made: made.__name__)
def test_an_impossible_argument_is_refused_before_anything_is_begun(made: Callable[..., Any]) -> None:
    assert made(**RIGHT[made]) is not None
    assert [wrong for name in arguments(made) for wrong in wrongs_of(made, name)] == []


@pytest.mark.parametrize(
    ("servers", "part"),
    [
        ("kafka..internal:9092", "a part between dots is empty"),
        ("kafka-1:9092,:9092", "it is empty"),
        ("kafka-1:http", "has no port from 1 to 65535"),
        ("kafka 1:9092", "' ' cannot be in the name of a host"),
    ],
)
def test_addresses_that_no_broker_can_have_are_refused(servers: str, part: str) -> None:
    with pytest.raises(ConfigError, match=part):
        Settings(kafka={"bootstrap.servers": servers})
    with pytest.raises(ConfigError, match=f"kafka is '{servers}'.*{part}"):
        RangeConsumer(servers, topic="orders", group="resize", client="resize-1")


@pytest.mark.parametrize("servers", ["::1", "fe80::1%eth0", "[::1]:9092", "SSL://kafka-1:9093/", "k_1.x."])
def test_addresses_that_librdkafka_takes_are_taken(servers: str) -> None:
    assert Settings(kafka={"bootstrap.servers": servers}).bootstrap_servers == servers


def test_numbers_of_numpy_are_taken_and_kept_as_those_of_python() -> None:
    whole, real = cast(Any, np.int64), cast(Any, np.float32)
    options = RangeOptions(
        topic="orders",
        group="resize",
        client="resize-1",
        block_messages=whole(50),
        lease_s=real(5),
        handler_timeout_s=np.float64(60),
        maximum_deliveries=whole(3),
        dead_letters=None,
        ranges_topic=None,
        request_timeout_s=whole(10),
        clock=system_clock,
    )
    kept = [options.block_messages, options.maximum_deliveries, options.lease_s, options.request_timeout_s]
    assert [type(each) for each in kept] == [int, int, float, float]
    named = {"heartbeat_interval_s": np.float64(30)}
    found = consumer_settings(SETTINGS, topics=["orders"], group="billing", client="billing-1", named=named)
    assert type(found.member.heartbeat_interval_s) is float
    OutboxWriter(limit_bytes=whole(1_000))


@pytest.mark.parametrize("given", [np.bool_(True), np.float32("nan"), np.int64(-1), 1j])
def test_numbers_of_numpy_have_the_same_bounds(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"^lease_s "):
        require_number("lease_s", given, 0, 9)
    with pytest.raises(ConfigError, match=r"^limit "):
        require_whole("limit", given, 0, 9)


class Brokers(str, Enum):  # noqa: UP042  whose str() is "Brokers.TESTS"
    TESTS = "kafka-1:9092"


class Folder:
    def __fspath__(self) -> str:
        return "/var/lib/shop"


def test_text_that_is_a_member_of_an_enum_counts_by_its_value() -> None:
    assert settings_at(Brokers.TESTS).bootstrap_servers == "kafka-1:9092"
    assert Settings(kafka={"bootstrap.servers": Brokers.TESTS}).bootstrap_servers == "kafka-1:9092"


def test_a_path_is_whatever_names_one() -> None:
    for folder in (Folder(), PurePosixPath("/var/lib/shop"), "/var/lib/shop"):
        assert Settings(data_dir=folder).data_dir == Path("/var/lib/shop")  # type: ignore[arg-type]


def test_an_empty_list_reads_no_global() -> None:
    assert not Processor(**{**DECLARED, "reads": []}).reads


@pytest.mark.parametrize("host", ["tables..internal", "x" * 64, "two words", "http://tables"])
@pytest.mark.parametrize("name", ["web_bind", "console_bind"])
def test_an_address_to_listen_on_that_no_host_can_have_is_refused(name: str, host: str) -> None:
    given: dict[str, Any] = {name: host, "web_token": "s3cret", "console_token": "s3cret"}
    with pytest.raises(ConfigError, match=f"{name} is '{host}': "):
        Settings(**given)

"""The list of Kafka properties against the librdkafka that is installed."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaException, Producer

from holdfast.config.kafka_properties import (
    ALIASES,
    ALLOWED,
    CONSUMER,
    CONTROLLED,
    PRODUCER,
    SHARED,
    UNSUPPORTED,
    check_name,
    env_names,
)
from holdfast.errors import ConfigError

NOT_TEXT = {
    "opaque",
    "interceptors",
    "default_topic_conf",
    "ssl_key",
    "ssl_certificate",
    "ssl_ca",
    "ssl_engine_callback_data",
    "msg_order_cmp",
}
"""Entries that take pointers, which no text configuration can carry."""


HIDDEN = {
    "client.software.name",
    "client.software.version",
    "enable.sparse.connections",
    "enable_sasl_queue",
    "metadata.request.timeout.ms",
}
"""Entries that librdkafka keeps for itself and leaves out of its documentation."""


def librdkafka() -> ctypes.CDLL:
    beside = Path(confluent_kafka.__file__).parent.parent
    bundled = sorted(beside.glob("confluent_kafka*libs/librdkafka*"))
    return ctypes.CDLL(str(bundled[0]) if bundled else "librdkafka.so.1")


def library_names() -> Iterator[str]:
    library = librdkafka()
    for new, dump in (
        ("rd_kafka_conf_new", "rd_kafka_conf_dump"),
        ("rd_kafka_topic_conf_new", "rd_kafka_topic_conf_dump"),
    ):
        create, show = getattr(library, new), getattr(library, dump)
        create.restype, show.restype = ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p)
        count = ctypes.c_size_t()
        pairs = show(ctypes.c_void_p(create()), ctypes.byref(count))
        yield from (pairs[index].decode() for index in range(0, count.value, 2))


def test_every_property_of_the_installed_librdkafka_is_either_allowed_or_refused_with_a_reason() -> None:
    dumped = (
        {name for name in library_names() if not name.startswith("test.mock") and not name.endswith("_cb")}
        - NOT_TEXT
        - HIDDEN
    )
    assert len(dumped) > 90
    unknown = []
    for name in sorted(dumped):
        try:
            check_name(name, "test")
        except ConfigError as error:
            if "unknown" in str(error):
                unknown.append(name)
    assert unknown == []


def accepted(library: ctypes.CDLL, name: str) -> bool:
    """Ask librdkafka whether it knows *name*; what it thinks of the value does not matter."""
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    reason = ctypes.create_string_buffer(512)
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    try:
        return bool(
            library.rd_kafka_conf_set(conf, name.encode(), b"1", reason, 512) != -2
        )  # -2: RD_KAFKA_CONF_UNKNOWN
    finally:
        library.rd_kafka_conf_destroy(conf)


@pytest.mark.parametrize("name", sorted(ALLOWED | ALIASES.keys()))
def test_every_allowed_property_exists_in_librdkafka(name: str) -> None:
    assert accepted(librdkafka(), name)


def test_the_question_to_librdkafka_can_be_answered_with_no() -> None:
    assert not accepted(librdkafka(), "bootstrap.server")


def test_the_lists_do_not_overlap() -> None:
    lists = [SHARED, PRODUCER, CONSUMER, ALIASES.keys(), CONTROLLED.keys(), UNSUPPORTED.keys()]
    assert sum(map(len, lists)) == len(frozenset[str]().union(*lists))


def test_each_environment_spelling_means_one_property() -> None:
    names = [*ALLOWED, *ALIASES, *CONTROLLED, *UNSUPPORTED]
    assert len(env_names()) == len(names)


def test_aliases_lead_to_allowed_properties() -> None:
    for alias, name in ALIASES.items():
        assert check_name(alias, "test") == name
        assert name in ALLOWED


def test_librdkafka_judges_the_values_we_let_through() -> None:
    with pytest.raises(KafkaException, match=r"socket\.timeout\.ms"):
        Producer({"bootstrap.servers": "127.0.0.1:1", "socket.timeout.ms": "soon"})
    Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": "0"}).close()

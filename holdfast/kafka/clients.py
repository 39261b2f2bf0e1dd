"""Makes every librdkafka client of the product: readers, members of groups, writers and admin clients.
Arguments set their logger, log level and error callback.

Also here: the settings of a consumer that reads a log and is a member of no group, and how an error that a
client raised while it was calling back lets go of the client.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Literal, TypeAlias

from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient

from holdfast.kafka.librdkafka_log import Quiet

logger = logging.getLogger(__name__)

Options = dict[str, str | int | bool]

Lines: TypeAlias = logging.Logger | Quiet
"""Takes the lines that librdkafka logs. Without one it writes them to stderr."""

CRITICAL = 2
"""A log level (syslog's) for clients whose errors are reported by us: librdkafka's own lines would bury them.
"""
CLOSE_S = 10.0
"""The limit for closing a reader. It commits nothing and is in no group, so a cut-off loses nothing."""


class Reader(Consumer):
    """A consumer whose `close` always returns.

    librdkafka's own does not: 2.16 never finished closing one in some hundreds of the consumers whose
    position lay outside of the log. So each is closed by a thread, which is abandoned if it does not finish.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._closing = False

    def close(self) -> None:
        """Let go of the broker, within `CLOSE_S`; raise what the closing raised by then."""
        if self._closing:
            return
        self._closing = True
        if sys.is_finalizing():  # no other thread runs any more; the process takes its connections with it
            return
        ended: Future[None] = Future()

        def end() -> None:
            try:
                ended.set_result(super(Reader, self).close())
            except BaseException as error:  # noqa: BLE001  raised to the caller
                ended.set_exception(error)

        threading.Thread(target=end, name="holdfast-close", daemon=True).start()
        try:
            ended.result(CLOSE_S)
        except TimeoutError:
            logger.warning(
                "a consumer did not close within %(limit_s)g s and is left to itself", {"limit_s": CLOSE_S}
            )


def make_reader(
    config: Mapping[str, Any],
    *,
    logger: Lines | None = None,
    log_level: int | None = None,
    on_error: Callable[[KafkaError], object] | None = None,
) -> Consumer:
    """Return a consumer for partitions that are assigned to it. It commits nothing by itself, and closes in
    time.

    *log_level* holds where *config* names none. *on_error* takes errors of the connection, which go to the
    log otherwise. KafkaException names a property that librdkafka refuses.
    """
    return Reader({**_set_up(config, logger, log_level, on_error), "enable.auto.commit": False})


def make_member(
    config: Mapping[str, Any],
    *,
    logger: Lines | None = None,
    log_level: int | None = None,
    on_error: Callable[[KafkaError], object] | None = None,
) -> Consumer:
    """Return a consumer that subscribes, and so joins the group that *config* names (see `make_reader`)."""
    return Consumer(_set_up(config, logger, log_level, on_error))


def make_writer(
    config: Mapping[str, Any],
    *,
    logger: Lines | None = None,
    log_level: int | None = None,
    on_error: Callable[[KafkaError], object] | None = None,
) -> Producer:
    """Return a producer, a transactional one where *config* has a `transactional.id` (see `make_reader`)."""
    return Producer(_set_up(config, logger, log_level, on_error))


def make_admin(
    config: Mapping[str, Any],
    *,
    logger: Lines | None = None,
    log_level: int | None = None,
    on_error: Callable[[KafkaError], object] | None = None,
) -> AdminClient:
    """Return an admin client (see `make_reader`). For questions to a group's coordinator use
    CoordinatorAdmin.
    """
    return AdminClient(_set_up(config, logger, log_level, on_error))


def _set_up(
    config: Mapping[str, Any],
    logger: Lines | None,
    log_level: int | None,
    on_error: Callable[[KafkaError], object] | None,
) -> dict[str, Any]:
    return {
        **({} if log_level is None else {"log_level": log_level}),
        **config,
        **({} if logger is None else {"logger": logger}),
        **({} if on_error is None else {"error_cb": on_error}),
    }


def reader_options(
    group: str, *, committed: bool, wait_ms: int, lost: Literal["earliest", "error"] = "earliest"
) -> Options:
    """Return the options of a reader whose partitions are assigned, and which reports their ends.

    librdkafka wants a *group* named; it is never joined and never committed to. With *committed*, readers see
    no record from the first open transaction on; without it, a stranger's open transaction hides no record.
    *wait_ms* is how long a broker may wait for records: only an answer reports an end. *lost* is what happens
    if the position is not in the log any more.

    >>> reader_options("app-readers", committed=True, wait_ms=10)["isolation.level"]
    'read_committed'
    """
    return {
        "group.id": group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed" if committed else "read_uncommitted",
        "auto.offset.reset": lost,
        "fetch.wait.max.ms": wait_ms,
        "fetch.queue.backoff.ms": 5,
    }


def forget_frames(error: BaseException) -> None:
    """Drop the frames of *error*, once it has been reported.

    The client's C code keeps a reference to an error that was raised in a callback. Its frames would keep
    their objects alive as long: a producer, say, with its threads and its connections.
    """
    while True:
        error.__traceback__ = None
        cause = error.__cause__ or error.__context__
        if cause is None:
            return
        error = cause

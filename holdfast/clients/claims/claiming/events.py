"""Events of a consumer's claims: remembered, logged, and passed on to listeners."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.core.member.actions import Event, Notify
from holdfast.core.member.settings import MemberSettings

logger = logging.getLogger(__name__)

LIMIT_EVENTS = 1_000
_ALARMING = (
    Event.FENCED,
    Event.ABANDONED,
    Event.UNDELIVERED,
    Event.HANDLER_SLOW,
    Event.CLOCK_SKEW,
    Event.RIVAL,
    Event.TOPIC_MADE_AGAIN,
)


class ClaimEvents:
    """The latest events of one engine, at most LIMIT_EVENTS. *lock* is the engine's: `notify` and `end` are
    called under it.
    """

    def __init__(self, settings: MemberSettings, lock: threading.Lock) -> None:
        self._settings, self._lock = settings, lock
        self._latest: deque[Notify] = deque(maxlen=LIMIT_EVENTS)
        self._listeners: list[Callable[[Notify | None], None]] = []

    def notify(self, event: Notify) -> None:
        """Remember, log and pass on *event*."""
        self._latest.append(event)
        if event.event is not Event.TOPICS:
            self._log(event)
        for receive in self._listeners:
            receive(event)

    def _log(self, event: Notify) -> None:
        where = " %(topic)s/%(partition)s" if event.topic else ""
        why = " (%(reason)s)" if event.reason else ""
        text = ": %(detail)s" if event.text else ""
        fields = {
            "group": self._settings.group_id,
            "client": self._settings.client_id,
            "claim_event": event.event.value,
            "topic": event.topic,
            "partition": event.partition,
            "reason": event.reason.value if event.reason else None,
            "detail": event.text,
        }
        level = logging.WARNING if event.event in _ALARMING else logging.INFO
        logger.log(level, "claim %(claim_event)s" + where + why + text, fields)

    def end(self) -> None:
        """Pass on that no event will follow."""
        for receive in self._listeners:
            receive(None)

    @contextmanager
    def listening(self, receive: Callable[[Notify | None], None]) -> Iterator[None]:
        """Have *receive* called with every event, and with None at the end, until the block is left.

        It must not wait, nor call back in.
        """
        with self._lock:
            self._listeners.append(receive)
        try:
            yield
        finally:
            with self._lock:
                self._listeners.remove(receive)

    def seen(self) -> tuple[Notify, ...]:
        """Return the latest events, oldest first."""
        with self._lock:
            return tuple(self._latest)

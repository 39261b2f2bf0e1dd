"""Incremental fetch sessions (KIP-227): a consumer says once what it fetches, and from then on only what
changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, NamedTuple, TypeAlias

from holdfast.embedded.protocol.codes import KafkaCode

FIRST, FINAL = 0, -1
NO_SESSION = 0
LIMIT_NAME = 250
LIMIT_PARTITIONS = 250_000
"""The limit for all sessions of a broker: the least recently used ones are dropped."""
MAX_EPOCH = (1 << 31) - 1

Fetched: TypeAlias = dict[str, Any]
"""A partition of a Fetch request."""
FetchKey: TypeAlias = tuple[str | bytes, int]
"""Topic, by name or by id, and partition."""


class SentBefore(NamedTuple):
    """The state of a partition as last sent to a client."""

    high_watermark: int
    log_start: int
    last_stable: int


class FetchSession:
    """The partitions that one client fetches, in the order in which they are looked at."""

    def __init__(self, session_id: int, *, by_id: bool) -> None:
        self.session_id, self.by_id = session_id, by_id
        self.epoch = 1
        self.wanted: dict[FetchKey, Fetched] = {}
        self.sent: dict[FetchKey, SentBefore] = {}
        self.weight = 0
        """As many as its partitions, and more for names that are longer than any topic's."""

    def change(self, wanted: Iterable[tuple[FetchKey, Fetched]], forgotten: Iterable[FetchKey]) -> None:
        """Take what a request adds or changes, and what it does not want any more."""
        for key, told in wanted:
            if key not in self.wanted:
                self.weight += _weight(key)
            self.wanted[key] = told
        for key in forgotten:
            if self.wanted.pop(key, None) is not None:
                self.weight -= _weight(key)
            self.sent.pop(key, None)

    def answered(self, key: FetchKey, sent: SentBefore, *, has_records: bool) -> None:
        """Note the state sent of a partition; one that had records is looked at last next time."""
        self.sent[key] = sent
        if has_records and key in self.wanted:
            self.wanted[key] = self.wanted.pop(key)


def _weight(key: FetchKey) -> int:
    return 1 + len(key[0]) // LIMIT_NAME


class FetchSessions:
    """The sessions of one broker, at most *limit*: the least recently used one is dropped for a new one."""

    def __init__(self, chance: Random, limit: int) -> None:
        self._chance, self._limit = chance, limit
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, wanted: list[tuple[FetchKey, Fetched]], *, by_id: bool) -> FetchSession:
        """Return a new session."""
        while len(self._sessions) >= self._limit:
            del self._sessions[next(iter(self._sessions))]
        session_id = self._chance.randint(1, (1 << 31) - 1)
        while session_id in self._sessions:
            session_id = self._chance.randint(1, (1 << 31) - 1)
        session = self._sessions[session_id] = FetchSession(session_id, by_id=by_id)
        self.change(session, wanted, ())
        return session

    def change(
        self,
        session: FetchSession,
        wanted: Iterable[tuple[FetchKey, Fetched]],
        forgotten: Iterable[FetchKey],
    ) -> None:
        """Change the partitions that a session fetches; the least recently used sessions are dropped to keep
        the limit, at last the session itself.
        """
        session.change(wanted, forgotten)
        weight = sum(each.weight for each in self._sessions.values())
        while weight > LIMIT_PARTITIONS:
            weight -= self._sessions.pop(next(iter(self._sessions))).weight

    def close(self, session_id: int) -> None:
        self._sessions.pop(session_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._sessions.clear()

    def use(self, session_id: int, epoch: int, *, by_id: bool) -> FetchSession | KafkaCode:
        """Return the session that a request of *epoch* continues, or why it cannot."""
        session = self._sessions.get(session_id)
        if session is None:
            return KafkaCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return KafkaCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id is not by_id:
            return KafkaCode.FETCH_SESSION_TOPIC_ID_ERROR
        self._sessions[session_id] = self._sessions.pop(session_id)
        session.epoch = 1 if epoch == MAX_EPOCH else epoch + 1
        return session

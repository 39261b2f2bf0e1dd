"""The current version of a table, from any process: reads it, and makes another one current."""

from __future__ import annotations

import asyncio

from holdfast.clients.tables.directory import Workers, WorkersTopic
from holdfast.clock import Clock, system_clock
from holdfast.config import Settings
from holdfast.core.engine.upgrades import NO_VERSION, Switch, encode_switch, is_complete, switch_key
from holdfast.errors import BrokerError, NotReadyError, QueryError
from holdfast.kafka.clients import CRITICAL, make_writer


class TableSwitch:
    """The switch of one *table* of the application of *settings*. Calls block, for *timeout_s* at most."""

    def __init__(
        self, settings: Settings, table: str, *, timeout_s: float, clock: Clock = system_clock
    ) -> None:
        self._settings, self.table, self._timeout_s, self._clock = settings, table, timeout_s, clock

    def read(self) -> Workers:
        """Return the content of the workers topic; BrokerError when that cannot be read."""
        return asyncio.run(self._read())

    async def _read(self) -> Workers:
        directory = WorkersTopic(self._settings, self._clock)
        try:
            await directory.refresh(self._timeout_s)
            return directory.workers
        finally:
            await directory.close()

    def to(self, version: int) -> Switch:
        """Make *version* the current one, and return the record. NotReadyError while a partition of it is not
        served or is being built.
        """
        workers = self.read()
        if missing := unserved(workers, self.table, version):
            raise NotReadyError(f"version {version} of {self.table} cannot be current: {'; '.join(missing)}")
        return self._write(version, self._current(workers, version))

    def back(self) -> Switch:
        """Make the version current that was so before the last switch, and return the record; QueryError
        without an earlier one.
        """
        workers = self.read()
        last = workers.switch(self.table)
        if last is None or last.before == NO_VERSION:
            raise QueryError(f"table {self.table} was never switched, so there is nothing to take back")
        if missing := unserved(workers, self.table, last.before):
            raise NotReadyError(
                f"version {last.before} of {self.table} cannot be current: {'; '.join(missing)}"
            )
        return self._write(last.before, last.version)

    def _current(self, workers: Workers, version: int) -> int:
        last = workers.switch(self.table)
        if last is not None:
            return last.version
        return min((each for each in workers.versions(self.table) if each != version), default=NO_VERSION)

    def _write(self, version: int, before: int) -> Switch:
        switch = Switch(
            table=self.table, version=version, before=before, at_ms=self._clock.now_ms(), by="command"
        )
        producer = make_writer(
            {**self._settings.producer(), "message.timeout.ms": int(self._timeout_s * 1000)},
            log_level=CRITICAL,
        )
        producer.produce(
            self._settings.workers_topic, encode_switch(switch), switch_key(self.table).encode(), 0
        )
        if producer.flush(self._timeout_s):
            raise BrokerError(
                f"{self._settings.workers_topic} did not take the switch within {self._timeout_s:g} s; look"
                " whether it is there before you write it again"
            )
        return switch


def unserved(workers: Workers, table: str, version: int) -> list[str]:
    """Return the parts of a table in a version that are not served, in words; empty when all of it is.

    >>> unserved(Workers(), "totals", 2)
    ['no worker serves it']
    """
    partitions = workers.partitions(table, version)
    if not partitions:
        return ["no worker serves it"]
    owning = [workers.owning(table, version, at) for at in range(partitions)]
    if is_complete(owning.__getitem__, partitions):
        return []
    absent = [str(at) for at, each in enumerate(owning) if each is None]
    built = [str(at) for at, each in enumerate(owning) if each is not None and each[1]]
    return [
        f"partitions {', '.join(numbers)} {why}"
        for numbers, why in ((absent, "are not served"), (built, "are being built"))
        if numbers
    ]

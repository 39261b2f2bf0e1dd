"""A console without Kafka: of workers in memory, and of groups that a test makes up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp

from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.records import GroupDescription, GroupKind, GroupPosition, GroupSurvey
from holdfast.clients.tables.directory import FixedDirectory
from holdfast.config import Settings
from holdfast.console.server import Console
from holdfast.console.watching.groups import GroupDesk
from holdfast.core.kafka.topic_partition import Place
from holdfast.dev.ports import free_ports
from tests.console.shop import totals


class MadeUpGroups(GroupDesk):
    """One claim group with *claims* claims, and what else is given."""

    def __init__(self, settings: Settings, claims: int, *more: GroupDescription) -> None:
        super().__init__(settings)
        self._claims = claims
        self._all = (_described(claims), *more)
        self.owners: dict[tuple[GroupKind, str], dict[Place, str]] = {}
        self.unlisted = ""
        self.asked: list[int] = []

    async def ask(self, work: Callable[[GroupAdmin], Any]) -> Any:
        return work(
            cast(
                GroupAdmin,
                SimpleNamespace(
                    survey=lambda: GroupSurvey(groups=self._all, owners=self.owners, unlisted=self.unlisted),
                    state=lambda group, kind: self._all[0],
                    places=lambda group, kind: tuple(("orders", at) for at in range(self._claims)),
                    describe=self._lines,
                ),
            )
        )

    def _lines(self, group: str, kind: GroupKind, places: Sequence[Place]) -> tuple[GroupPosition, ...]:
        self.asked.append(len(places))
        return tuple(_position(group, *each) for each in sorted(places))


def _described(claims: int) -> GroupDescription:
    return GroupDescription(
        group="billing",
        kind=GroupKind.CLAIM,
        state="Stable",
        members=9,
        partitions_held=claims,
        partitions=claims,
    )


def _position(group: str, topic: str, partition: int) -> GroupPosition:
    return GroupPosition(
        group=group,
        topic=topic,
        partition=partition,
        current_offset=10,
        log_end_offset=12,
        lag=2,
        consumer_id=f"billing-{partition % 9}",
        host=None,
        client_id="billing",
        heartbeat_age_s=1,
    )


class Browsing:
    """Asks a console as a browser would, without following where it is sent."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self.session = url.rstrip("/"), session

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(
            self.url + path, headers={"Accept": "text/html", **headers}, allow_redirects=False
        ) as response:
            return response.status, await response.text()


def console_settings(**changes: Any) -> Settings:
    return Settings(**{"app": "shop", "console_port": free_ports(1)[0], **changes})


@asynccontextmanager
async def opened(
    settings: Settings, directory: FixedDirectory, groups: GroupDesk | None = None
) -> AsyncIterator[Browsing]:
    """Run a console of `totals`, and ask it."""
    console = Console(settings, [totals()], directory=directory, groups=groups, table_directory=directory)
    async with console, aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as session:
        yield Browsing(console.url, session)

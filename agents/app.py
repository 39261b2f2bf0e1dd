"""The Faust application: `create_app` turns processors into agents and tables that fold exactly once."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from faust.app import BootStrategy
from faust.transport.drivers import TRANSPORTS
from yarl import URL

from holdfast.agents.faust.declared import options
from holdfast.agents.faust.declared.parts import DerivedStream, FaustParts, LeaderOnDemand
from holdfast.agents.faust.declared.stock_tables import StockTable
from holdfast.agents.faust.process.leaving import Worker, tell_in_one_line
from holdfast.agents.faust.process.watch import STUCK_EXIT_CODE, ManagerService, exit_within
from holdfast.agents.faust.rebalancing.assignor import ReturningAssignor
from holdfast.agents.faust.rebalancing.group import FaustGroup
from holdfast.agents.faust.rebalancing.recovery import ManagedTables
from holdfast.agents.faust.transport.conductor import AS_IS
from holdfast.agents.faust.transport.credentials import broker_credentials
from holdfast.agents.metrics import Metrics
from holdfast.agents.partitions.manager import PartitionManager
from holdfast.agents.web.server import OpenConsole, WebService
from holdfast.config import Settings, settings_from_environment
from holdfast.config.client_arguments import require_settings
from holdfast.core.engine.declared.chains import require_chains
from holdfast.core.engine.declared.global_tables import globals_by_name
from holdfast.core.engine.declared.processor import Processor, by_name, require_alike_steps
from holdfast.core.engine.declared.retention import retentions
from holdfast.errors import ConfigError
from holdfast.extras import extra_of
from holdfast.schemas import registry
from holdfast.tracing.exporting import Exporting

if TYPE_CHECKING:
    from holdfast.agents.services.harvester import HarvesterService
    from holdfast.console.asking.why import Load

logger = logging.getLogger(__name__)

STREAM_BUFFER_EVENTS = 4096
BESIDE = {
    "store": "memory://",
    "agent_supervisor": "mode.CrashingSupervisor",
    "topic_allow_declare": True,
    "Topic": "holdfast.agents.faust.declared.topics:PlacedTopic",
}
"""Faust's settings of an application unless it says otherwise."""
FAUST_DATADIR = "{conf.name}-data"
"""The value that `faust` exports without --datadir."""


TRANSPORTS.aliases["holdfast"] = "holdfast.agents.faust.transport.transport:BatchTransport"
sys.excepthook = tell_in_one_line(sys.excepthook)


class Boot(BootStrategy):
    """Faust's start order without its web server: ours answers from the start on, says whether it may, and
    asks for a token. It serves Faust's pages too, so their cache is started.
    """

    enable_web = False

    def web_server(self) -> Iterable[Any]:
        return self.web_components()


class App(FaustParts):
    """A Faust app whose tables are kept by a `PartitionManager`. Made by `create_app`."""

    BootStrategy = Boot
    manager: PartitionManager
    harvesting: HarvesterService | None = None
    """The service that harvests the outbox in this worker."""
    exporting: Exporting | None = None
    """The exporter of this worker's traces, while it runs."""
    bound: str
    """Faust's web_bind as it was before its command line was read."""
    load_again: Load | None = None
    """Loads this application again in a process of its own, where the console on the worker folds a partition
    again; `holdfast worker` knows how.
    """
    worded: Callable[[str], str] | None = None
    """Words a worker's last message for its parent process: `holdfast worker` adds the application to the
    commands that errors advise.
    """

    def on_init_dependencies(self) -> Iterable[Any]:
        self._refuse_faust_options()
        self.metrics = Metrics(self.settings.app)
        group = FaustGroup(self, self.settings, self.processors)
        self.manager = PartitionManager(self.settings, self.processors, self.metrics, group)
        web = WebService(
            self.settings,
            self.manager,
            self.metrics,
            pages=self.page_resources,
            console=self._open_console() if self.settings.console_on_workers else None,
        )
        services: list[Any] = [web, ManagerService(self.manager, web.doors)]
        if self.settings.outbox_harvest:
            # Here, since SQLAlchemy is a third of what a worker imports, and most have no outbox.
            from holdfast.agents.services.harvester import HarvesterService
            from holdfast.agents.services.harvester_page import HarvesterPage
            from holdfast.outbox.settings import harvest_settings

            self.harvesting = HarvesterService(self, harvest_settings(self.settings), group.leave)
            self.metrics.pages.append(HarvesterPage(self.harvesting.harvester))
            services.append(self.harvesting)
        return [*services, *super().on_init_dependencies()]

    def _open_console(self) -> OpenConsole:
        try:
            if self.settings.console_oidc_issuer is not None:
                import_module("authlib")
            from holdfast.console.on_worker import open_on_worker
        except ModuleNotFoundError as error:
            extra = extra_of(error.name) or "console"
            raise ConfigError(
                f"console_on_workers needs {error.name}, which is not installed: pip install"
                f" 'holdfast[{extra}]'"
            ) from None
        return partial(
            open_on_worker,
            settings=self.settings,
            processors=self.processors.values(),
            load=self.load_again,
        )

    def _refuse_faust_options(self) -> None:
        """Only a part of a worker would obey Faust's own options for what holdfast's settings govern. A
        worker that obeys half of its options is worse than one that refuses them.
        """
        if (
            URL(self.conf.canonical_url) != URL(self.settings.advertised_url)
            or self.conf.web_bind != self.bound
        ):
            raise ConfigError(
                "faust's --web-port, --web-host and --web-bind do not move the port of tables, health and"
                " metrics: set web_port, web_url and web_bind instead, as in"
                f" HOLDFAST_WEB_PORT={self.conf.web_port}"
            )
        folder = os.environ.get("F_DATADIR", FAUST_DATADIR)
        if folder != FAUST_DATADIR:
            raise ConfigError(
                "faust's --datadir (F_DATADIR) does not move the tables: set data_dir instead,"
                f" HOLDFAST_DATA_DIR={folder}"
            )

    async def on_first_start(self) -> None:
        make_data_dir(self.settings.data_dir)  # Faust makes only the last folder of the path
        self.exporting = Exporting(self.settings.app)
        self.exporting.start()
        await super().on_first_start()
        quiet_the_collector()

    async def stop(self) -> None:
        exit_within(self.settings.commit_timeout_s + self.settings.rebalance_timeout_s, STUCK_EXIT_CODE)
        await super().stop()
        exporting, self.exporting = self.exporting, None
        if exporting is not None:
            await asyncio.to_thread(exporting.stop)

    async def _on_partitions_revoked(self, revoked: set[Any]) -> None:
        await super()._on_partitions_revoked(revoked)
        await self.manager.adoption.settled()
        await self.tables.stock.written()  # type: ignore[attr-defined]  # the next owner restores from the changelogs

    def _on_rebalance_when_stopped(self) -> None:
        """Keep the consumer while this worker ends, which closes it in its turn.

        Stock closes it here, while other parts still run: to wait until streams are done is to commit by it,
        and that would never return.
        """


def _changeable_by_others(folder: Path) -> Path | None:
    """Return the folder above *folder* in which every account may rename entries, None without one."""
    above = (each for each in folder.resolve().parents if each.stat().st_mode & 0o1002 == 0o002)
    return next(above, None)


def make_data_dir(folder: Path) -> None:
    """Make the folder of the stores, which only this account may enter; raises ConfigError where it cannot
    be.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid == os.geteuid() and found.st_mode & 0o077:
            folder.chmod(0o700)  # a volume's root may be another's; the stores' folders in it are ours
        if (loose := _changeable_by_others(folder)) is not None:
            logger.warning(
                "other accounts can replace data_dir by another folder: all may write to %(folder)s, "
                "which lacks the sticky bit; chmod it, or name another data_dir",
                {"folder": str(loose)},
            )
    except FileExistsError:
        raise ConfigError(
            f"data_dir is {folder}, which is a file: name a folder, where the worker keeps its stores"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"data_dir is {folder}, which cannot be used: {error.strerror}; name a folder that this account"
            " owns"
        ) from error


def quiet_the_collector() -> None:
    """Have Python's cycle collector run rarely: a backlog keeps 10^5 records alive, none of them in a cycle,
    and walking them again and again costs a fifth of the worker's time; yet walk few at once, since the event
    loop waits for it. Objects loaded at start are not walked at all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 4, 2_000)


def create_app(
    processors: Sequence[Processor[Any, Any]] = (), settings: Settings | None = None, **faust: Any
) -> App:
    """Return a Faust app that folds *processors* exactly once: `faust -A module worker -l info`.

    Settings come from the environment and `holdfast.toml` unless given. *faust* are Faust's own for agents,
    tables and pages in addition to the processors (agents/faust/declared/options.py), such as
    `topic_partitions` or `store`; ConfigError for one that holdfast's settings govern. Nothing is contacted
    before the worker starts. ChainError when one is of another version than those that read what it emits
    allow, ConfigError when two declare another retention of one topic, or read a step's topic with other
    serdes than the step's.
    """
    named = by_name(processors)
    require_chains(processors)
    globals_by_name(each for processor in processors for each in processor.reads)
    retentions(processors)
    require_alike_steps(processors)
    settings = settings_from_environment() if settings is None else settings
    require_settings(settings)
    registry.use(settings)
    options.require_taken(faust)
    app = App(settings.app, **{**BESIDE, **faust, **governed(settings)})
    app.settings, app.processors, app.bound = settings, named, app.conf.web_bind
    for processor in processors:
        _declare(app, processor)
    if settings.outbox_harvest:
        from holdfast.agents.services.harvester import declare

        declare(app)
    return app


def governed(settings: Settings) -> dict[str, Any]:
    """Return Faust's settings that follow from ours, or that holdfast's parts in it depend on."""
    return {
        "broker": "holdfast://" + settings.bootstrap_servers.replace(",", ";"),
        "broker_credentials": broker_credentials(settings),
        "datadir": str(settings.data_dir),
        "Worker": Worker,
        "TableManager": ManagedTables,
        "Stream": DerivedStream,
        "Table": StockTable,
        "LeaderAssignor": LeaderOnDemand,
        "PartitionAssignor": ReturningAssignor,
        "topic_disable_leader": True,
        "topic_replication_factor": settings.replication_factor,
        "table_standby_replicas": settings.standbys,
        "consumer_auto_offset_reset": "earliest",
        "consumer_group_instance_id": settings.instance_id,
        "consumer_max_fetch_size": 1 << 16,
        "broker_session_timeout": settings.session_timeout_s,
        "broker_heartbeat_interval": settings.heartbeat_interval_s,
        "broker_request_timeout": max(settings.session_timeout_s + 1, settings.request_timeout_s),
        "broker_rebalance_timeout": settings.rebalance_timeout_s,
        "broker_commit_interval": 1.0,
        "stream_buffer_maxsize": STREAM_BUFFER_EVENTS,
        "stream_recovery_delay": 0.0,
        "canonical_url": settings.advertised_url,
        "web_enabled": False,
        "web_tables_enabled": False,
        "web_router_enabled": False,
    }


def _declare(app: App, processor: Processor[Any, Any]) -> None:
    """Register one processor: its agent is the way in for batches, its table makes Faust co-partition
    changelog and standbys.
    """
    sources = ", ".join(processor.topics)
    source = app.topic(*processor.topics, key_serializer=AS_IS, value_serializer=AS_IS)
    app.Table(
        processor.table,
        key_type=bytes,
        value_type=bytes,
        help=f"rows of {processor.name}, folded from {sources}",
    )

    async def fold(stream: Any) -> None:
        async for event in stream.noack().events():
            app.manager.hand(processor.name, event)

    fold.__doc__ = f"Folds {sources} into table {processor.table}, exactly once."
    app.agent(source, name=f"holdfast.{processor.name}", concurrency=1)(fold)

"""The internals of faust-streaming 0.15.3, mode 0.7.1 and aiokafka 0.14.0 that we rely on, where no public
interface promises them.

`agents/faust/transport/transport.py`, `holdfast/kafka/fetching/fetcher.py`,
`agents/faust/transport/group_watch.py`, `agents/faust/transport/first_brokers.py`,
`agents/faust/rebalancing/assignor.py`, `agents/faust/process/leaving.py` and
`agents/faust/rebalancing/recovery.py` override and touch private names;
`holdfast/kafka/requests/raw_request.py` replaces aiokafka's requests. Here every function that they
replace, call or count on is pinned by its source: when one of these tests fails after an upgrade, read that
function again, then the override, and only then renew the fingerprint (the failure prints it). The other
tests pin the behaviour of traps that have bitten.
"""

from __future__ import annotations

import ast
import asyncio
import hashlib
import importlib
import inspect
import subprocess
import sys
from importlib.metadata import version
from typing import Any

import faust
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.consumer.fetcher import Fetcher as AioFetcher
from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import CommitFailedError
from faust.assignor.leader_assignor import LeaderAssignor
from faust.assignor.partition_assignor import PartitionAssignor
from faust.events import Event
from faust.streams import Stream
from faust.tables import recovery as stock_recovery
from faust.tables.manager import TableManager
from faust.transport import consumer as stock_consumer
from faust.transport.conductor import Conductor
from faust.transport.drivers import aiokafka as driver
from faust.types import EventT
from mode import Service

from holdfast.agents.app import Boot
from holdfast.agents.faust.declared import parts, stock_tables
from holdfast.agents.faust.process import leaving
from holdfast.agents.faust.rebalancing import assignor, recovery
from holdfast.agents.faust.transport import conductor, declared_topics, transport
from holdfast.agents.partitions.types import FoldEvent
from tests.support.patience import DEADLINE_S
from tests.support.places import ROOT

FINGERPRINTS: dict[str, dict[str, str]] = {
    "faust.transport.drivers.aiokafka": {
        "Producer.create_topic": "d2d406c4b9a4",
        "Producer._ensure_producer": "5592a4bbdf25",
        "Transport._topic_config": "968ad6a46c67",
        "AIOKafkaConsumerThread._create_worker_consumer": "c2701bfc3e6f",
        "AIOKafkaConsumerThread._commit": "932852ce7a23",
        "AIOKafkaConsumerThread._ensure_consumer": "ff4a4c693b7e",
        "AIOKafkaConsumerThread.on_start": "38b4e8bd1e10",
        "AIOKafkaConsumerThread.on_thread_stop": "8dfc004e258b",
        "AIOKafkaConsumerThread.verify_event_path": "b983e7735f64",
        "Consumer._new_consumer_thread": "0870ec53dea7",
    },
    "faust.transport.consumer": {
        "Consumer._commit_offsets": "1a6979904118",
        "Consumer.on_task_error": "0d7f23d0bb26",
        "Consumer._drain_messages": "44a2500309e8",
        "Consumer._new_offset": "1d2c7ea89a7a",
        "Consumer._commit_tps": "a20e230b05ae",
        "Consumer.verify_all_partitions_active": "4e0e46f5c297",
        "Consumer._filter_tps_with_pending_acks": "f6f923977423",
        "Consumer._should_commit": "5ce941793947",
        "ThreadDelegateConsumer._commit": "a20eec84e4b2",
        "Consumer.ack": "5fcf41cf4515",
        "Consumer.wait_empty": "e4662fe24f09",
        "Consumer.perform_seek": "0e8c130ff4b0",
        "Consumer.stop_flow": "cf7e875a2b0d",
        "Consumer.resume_flow": "db59630f25b5",
        "Consumer.on_partitions_revoked": "d04b7ae72c6f",
        "Consumer.on_partitions_assigned": "29ce96596f05",
        "Fetcher._fetcher": "68f894f0b577",
    },
    "faust.tables.recovery": {
        "Recovery.on_rebalance": "aa4d997a1795",
        "Recovery._restart_recovery": "6bd8a8558a2d",
        "Recovery._slurp_changelogs": "7825c7e50f76",
        "Recovery._publish_stats": "48939a846a9a",
        "Recovery._wait": "ec7429b70176",
        "Recovery._set_recovery_started": "bcfebf81ae13",
        "Recovery._set_recovery_ended": "84badf3f2cfe",
        "Recovery._resume_streams": "d986a6710c1a",
        "Recovery.on_recovery_completed": "6ef567acf072",
        "Recovery.flush_buffers": "6fa9c17f1071",
    },
    "faust.tables.manager": {
        "TableManager.add": "4c5232ce6ba1",
        "TableManager.recovery": "f0bf5de78b4c",
        "TableManager.on_start": "365dd25fbc0e",
        "TableManager._update_channels": "88e3941facc9",
        "TableManager.on_partitions_revoked": "382852adff42",
        "TableManager.on_rebalance": "2d2c23a07bf5",
        "TableManager.on_actives_ready": "274c07e80913",
        "TableManager.on_standbys_ready": "46be52cea696",
    },
    "faust.app.base": {
        "App._on_agent_error": "bdd12f286de6",
        "App._on_partitions_revoked": "d5c895bbe57d",
        "App._on_partitions_assigned": "de932b7927db",
        "App._on_rebalance_when_stopped": "1b172d9af8ff",
        "App._stop_consumer": "55854a5de12c",
        "App.on_rebalance_start": "5c1e23de3067",
        "App.on_rebalance_end": "b7ff69e1e377",
        "App._stop_fetcher": "68494554c248",
        "BootStrategy.web_server": "3caebb79a3b3",
    },
    "faust.transport.conductor": {
        "Conductor._update_indices": "619b3247b96a",
        "Conductor._update_callback_map": "37598771880d",
        "Conductor._build_handler": "5c071d127798",
        "Conductor._subscriber": "2a7908583404",
    },
    "faust.topics": {
        "Topic.declare": "8fbfd8842b96",
        "Topic._on_published": "7cfe9ebd6596",
        "Topic.decode": "c5cf3eebd64f",
    },
    "faust.streams": {
        "Stream._enable_passive": "64da8ce9f729",
    },
    "faust.agents.agent": {
        "Agent._execute_actor": "c750b828d2bd",
        "Agent._get_supervisor_strategy": "cea5313e9225",
    },
    "faust.assignor.leader_assignor": {
        "LeaderAssignor.on_start": "66bcb65ad54b",
        "LeaderAssignor._enable_leader_topic": "1682a3e028c9",
        "LeaderAssignor.is_leader": "2f3c601ab031",
    },
    "faust.web.base": {
        "Web.init_server": "bd11a60294bb",
        "BlueprintManager.apply": "2c64adb30989",
    },
    "faust.tables.base": {
        "Collection._changelog_topic_name": "f341fe97037b",
        "Collection.send_changelog": "3dd3884e1b5f",
        "Collection._maybe_set_key_ttl": "39b7465fa580",
        "Collection._should_expire_keys": "ac578d5af0a4",
        "Collection._to_key": "c90f71534762",
        "Collection._del_old_keys": "6ef742ec9ad5",
        "Collection.on_recovery_completed": "b1526fb39ea0",
    },
    "faust.tables.table": {
        "Table.on_key_set": "a370e35ca55c",
    },
    "faust.stores.memory": {
        "Store.apply_changelog_batch": "71863e3cd727",
        "Store.on_recovery_completed": "a00bef343e13",
    },
    "faust.stores.rocksdb": {
        "Store.persisted_offset": "6f2e502fb860",
        "Store.apply_changelog_batch": "ea3344d369fc",
        "Store._visible_keys": "28b3c24a6884",
        "Store._db_for_partition": "cb7e67d5f9ef",
    },
    "faust.assignor.partition_assignor": {
        "PartitionAssignor.tables_metadata": "1d69c8fd9c62",
        "PartitionAssignor.on_assignment": "72f34bf053d6",
        "PartitionAssignor._get_client_metadata": "a0e1ba5c0d01",
        "PartitionAssignor._get_copartitioned_groups": "82b7a3764ad5",
        "PartitionAssignor._get_external_topic_distribution": "d84e460e9789",
        "PartitionAssignor.metadata": "6d7f0ebcd61e",
        "PartitionAssignor._metadata": "966368ad7e0c",
        "PartitionAssignor._perform_assignment": "1e0bf2c5c8f4",
        "PartitionAssignor._protocol_assignments": "e231e876d04a",
        "PartitionAssignor._update_member_urls": "42c1ee6897e1",
        "PartitionAssignor._get_changelog_distribution": "dd376e80a45b",
        "PartitionAssignor._global_table_standby_assignments": "b956f05703d9",
        "PartitionAssignor.__init__": "64cb8790c572",
    },
    "faust.assignor.client_assignment": {
        "ClientAssignment.add_copartitioned_assignment": "adab498a2253",
        "ClientAssignment.copartitioned_assignment": "f1790a03747d",
        "ClientAssignment.kafka_protocol_assignment": "a98a588cbc88",
    },
    "faust.assignor.cluster_assignment": {
        "ClusterAssignment.add_client": "b624dbd8c2ad",
        "ClusterAssignment.copartitioned_assignments": "ade48f57daa3",
    },
    "faust.assignor.copartitioned_assignor": {
        "CopartitionedAssignor.get_assignment": "9e7c467c7140",
    },
    "mode.services": {
        "Service.wait_first": "feade6a31f8a",
        "Service.crash": "14980000465d",
        "Service._crash": "7bc0c709a151",
    },
    "mode.threads": {
        "ServiceThread._stopped_set": "af9b1ff77812",
    },
    "mode.worker": {
        "Worker.execute_from_commandline": "212e98f635d7",
        "Worker.stop_and_shutdown": "bf1608cc3011",
        "Worker._shutdown_loop": "6ad3b1129015",
        "exiting": "6df533b6e7e5",
    },
    "faust.worker": {
        "Worker.on_setup_root_logger": "0d468284fb5c",
    },
    "aiokafka.consumer.group_coordinator": {
        "GroupCoordinator._do_heartbeat": "dc1d6632aaa6",
        "GroupCoordinator._send_req": "fa4b12e914ce",
        "GroupCoordinator.ensure_coordinator_known": "4dfb9ccd877a",
        "GroupCoordinator._push_error_to_user": "743ff515bd7e",
        "GroupCoordinator._coordination_routine": "75273e127d4a",
        "GroupCoordinator.close": "f30d83108945",
        "GroupCoordinator._do_commit_offsets": "c3a3ea5613f3",
        "CoordinatorGroupRebalance.perform_group_join": "ff2c2109b2e9",
        "CoordinatorGroupRebalance._send_sync_group_request": "7429ca078ddf",
        "GroupCoordinator._heartbeat_routine": "61d010289522",
        "GroupCoordinator._maybe_leave_group": "016cd88a16e6",
    },
    "aiokafka.consumer.subscription_state": {
        "SubscriptionState.fetcher_idle_time": "45289bef04d7",
    },
    "aiokafka.client": {
        "AIOKafkaClient.send": "246b277687d7",
        "AIOKafkaClient.bootstrap": "198943b004e5",
        "AIOKafkaClient.ready": "79d9637f40fc",
        "AIOKafkaClient.set_topics": "9f9b55d6d899",
        "AIOKafkaClient.add_topic": "b054eda66291",
        "AIOKafkaClient.force_metadata_update": "cb7befef21c8",
        "AIOKafkaClient._metadata_update": "06dc51ed3e0d",
        "AIOKafkaClient.coordinator_lookup": "19cc69fb75f8",
        "AIOKafkaClient.close": "02119d4d618a",
        "AIOKafkaClient._get_conn": "68ce5d839171",
    },
    "aiokafka.conn": {
        "AIOKafkaConnection.send": "5909ea32f4ef",
        "AIOKafkaConnection._read": "7b892995c0b8",
        "AIOKafkaConnection._handle_frame": "46a7d9b8cf7c",
    },
    "aiokafka.consumer.consumer": {
        "AIOKafkaConsumer.pause": "d5fc6f423650",
    },
}

PRIVATE: dict[str, set[str]] = {
    "agents/faust/transport/transport.py": {
        "_acked",
        "_acked_index",
        "_client",
        "_committed_offset",
        "_coordinator",
        "_create_worker_consumer",
        "_ensure_consumer",
        "_fetch_max_wait_ms",
        "_group_instance_id",
        "_last_fetch_ended",
        "_read_offset",
        "_stopped",
        "_subscription",
        "_thread",
        "_topics",
        "_unacked_messages",
    },
    "agents/faust/transport/group_watch.py": {
        "_closing",
        "_coordination_task",
        "_group_instance_id",
        "_push_error_to_user",
        "_send_req",
    },
    "agents/faust/rebalancing/assignor.py": {
        "_assignment",
        "_compress",
        "_decompress",
        "_get_changelog_distribution",
        "_get_copartitioned_groups",
        "_get_external_topic_distribution",
        "_metadata",
        "_protocol_assignments",
        "_topic_groups",
        "_update_member_urls",
        "_url",
    },
    "agents/faust/rebalancing/recovery.py": {
        "_fetcher",
        "_generation_id",
        "_recovery",
        "_set_recovery_ended",
        "_set_recovery_started",
        "_update_channels",
        "_wait",
    },
    "agents/app.py": {"_on_partitions_revoked"},
    "agents/faust/transport/conductor.py": {
        "_build_handler",
        "_tp_index",
        "_tp_to_callback",
        "_update_indices",
    },
    "agents/faust/declared/stock_tables.py": {
        "_db_for_partition",
        "_dbs",
        "_decode_key",
        "_key_partition",
        "_maybe_set_key_ttl",
        "_partition_latest_timestamp",
        "_partition_timestamp_keys",
        "_partition_timestamps",
        "_should_expire_keys",
        "_to_key",
        "_visible_keys",
    },
    "agents/faust/declared/parts.py": {
        "_changelog_topic_name",
        "_enable_leader_topic",
        "_enabled",
        "_get_supervisor_strategy",
    },
    "agents/faust/transport/declared_topics.py": {"_ensure_producer", "_topic_config"},
    "holdfast/kafka/fetching/fetcher.py": {"_conns", "_limit", "_reader"},
}
"""The private names of other packages that each module mentions."""

OVERRIDDEN: dict[type, tuple[type, set[str]]] = {
    transport.GroupThread: (
        driver.AIOKafkaConsumerThread,
        {"_create_worker_consumer", "_commit", "_stopped_set", "on_start", "subscribe", "verify_event_path"},
    ),
    transport.BatchConsumer: (
        driver.Consumer,
        {
            "_new_consumer_thread",
            "_filter_tps_with_pending_acks",
            "_new_offset",
            "perform_seek",
            "_drain_messages",
            "wait_empty",
            "_commit",
            "_commit_offsets",
            "_should_commit",
            "ack",
            "__init__",
        },
    ),
    recovery.FencedRecovery: (
        stock_recovery.Recovery,
        {
            "flush_buffers",
            "add_active",
            "add_standby",
            "on_rebalance",
            "_restart_recovery",
            "_slurp_changelogs",
            "_publish_stats",
        },
    ),
    assignor.ReturningAssignor: (
        PartitionAssignor,
        {"__init__", "_perform_assignment", "_protocol_assignments", "metadata", "on_assignment"},
    ),
    conductor.SharingConductor: (Conductor, {"__init__", "_update_indices", "_update_callback_map"}),
    declared_topics.DeclaringProducer: (driver.Producer, {"create_topic"}),
    parts.DerivedStream: (Stream, {"_enable_passive"}),
    parts.LeaderOnDemand: (LeaderAssignor, {"on_start"}),
    stock_tables.StockTable: (faust.Table, {"send_changelog", "on_key_set"}),
    leaving.Worker: (
        faust.Worker,
        {
            "__init__",
            "start",
            "_crash",
            "_say",
            "on_setup_root_logger",
            "stop_and_shutdown",
            "_shutdown_loop",
        },
    ),
    recovery.ManagedTables: (
        TableManager,
        {"__init__", "recovery", "add", "on_start", "on_partitions_revoked"},
    ),
}


def function(module: str, name: str) -> Any:
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = inspect.getattr_static(found, part)
    if isinstance(found, property):
        found = found.fget
    return getattr(found, "fun", found)


@pytest.mark.parametrize(
    ("package", "pinned"),
    [("faust-streaming", "0.15.3"), ("mode-streaming", "0.7.1"), ("aiokafka", "0.14.0")],
)
def test_the_versions_are_those_that_were_read(package: str, pinned: str) -> None:
    assert version(package) == pinned


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in FINGERPRINTS.items() for name in names]
)
def test_what_we_replace_or_count_on_is_as_it_was_read(module: str, name: str) -> None:
    source = inspect.getsource(function(module, name))
    found = hashlib.sha256(source.encode()).hexdigest()[:12]
    assert found == FINGERPRINTS[module][name], (
        f"{module}.{name} has changed, its source is now {found}: read it and our use of it again"
    )


@pytest.mark.parametrize("file", PRIVATE)
def test_every_private_name_of_another_package_is_listed_here(file: str) -> None:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    own |= {target.attr for target in _assigned(tree)}
    used = {
        node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and _is_private(node.attr)
    }
    assert used - (own - PRIVATE[file]) == PRIVATE[file]


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _assigned(tree: ast.AST) -> list[ast.Attribute]:
    """Return the attributes that a constructor of ours gives its object."""
    made = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    return [
        node
        for each in made
        for node in ast.walk(each)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    ]


@pytest.mark.parametrize("ours", OVERRIDDEN)
def test_everything_overridden_is_there_to_be_overridden_with_the_same_parameters(ours: type) -> None:
    stock, names = OVERRIDDEN[ours]
    assert issubclass(ours, stock)
    shared = {
        name for name in vars(ours) if hasattr(stock, name) and inspect.isroutine(_plain(vars(ours)[name]))
    }
    assert shared - {"__init_subclass__"} == {name for name in names if name != "recovery"}
    for name in names - {"__init__", "recovery"}:
        ours_takes, stock_takes = (
            list(inspect.signature(_plain(vars(each)[name])).parameters)
            for each in (ours, _owner(stock, name))
        )
        assert ours_takes == stock_takes, name


def _owner(stock: type, name: str) -> type:
    return next(each for each in stock.__mro__ if name in vars(each))


def _plain(found: Any) -> Any:
    """Return the function in a `Service.task`."""
    return getattr(found, "fun", found)


# -- the traps


def test_the_tasks_of_stock_recovery_are_exactly_those_that_ours_replaces() -> None:
    tasks = {
        name for name, found in vars(stock_recovery.Recovery).items() if type(found).__name__ == "ServiceTask"
    }
    assert tasks == {"_restart_recovery", "_slurp_changelogs", "_publish_stats"}


def test_mode_takes_a_timeout_for_a_stop() -> None:
    """So `_wait` must never be given a timeout: stock recovery then leaves its loop and the worker is
    silent for ever.
    """

    async def waits() -> bool:
        service = Service()
        return (await service.wait_first(asyncio.Event().wait(), timeout=0.01)).stopped

    assert asyncio.run(waits())
    assert "self._wait(lived.wait_for(" in (ROOT / "agents/faust/rebalancing/recovery.py").read_text(
        encoding="utf-8"
    )


def test_a_commit_that_crosses_a_rebalance_is_not_recognised_by_its_text() -> None:
    assert "already rebalanced" not in str(CommitFailedError())


def test_aiokafka_counts_its_own_fetches_only_and_leaves_the_group_without() -> None:
    async def idle() -> tuple[float, float]:
        state = SubscriptionState()
        state._last_fetch_ended -= 100
        before = state.fetcher_idle_time
        state._last_fetch_ended += 100
        return before, state.fetcher_idle_time

    before, after = asyncio.run(idle())
    assert before >= 100
    assert after < 1
    heartbeat = inspect.getsource(GroupCoordinator._heartbeat_routine)
    assert "self._do_heartbeat()" in heartbeat, "looked up on the object each time, so that ours is called"
    assert "fetcher_idle_time" in heartbeat
    assert "self._maybe_leave_group()" in heartbeat


def test_aiokafka_takes_the_longest_fetch_wait_when_it_starts() -> None:
    start = inspect.getsource(AIOKafkaConsumer.start)
    assert "fetch_max_wait_ms=self._fetch_max_wait_ms" in start
    assert "self._coordinator = GroupCoordinator(" in start
    assert "fetch_max_wait_ms" in inspect.signature(AioFetcher.__init__).parameters


def test_aiokafka_does_not_fetch_paused_partitions() -> None:
    assert "paused" in inspect.getsource(AioFetcher._get_actions_per_node)


def test_revocation_begins_with_our_tables() -> None:
    """`ManagedTables.on_partitions_revoked` voids fetched records; it must come before Faust waits for
    anything.
    """
    revoked = inspect.getsource(function("faust.app.base", "App._on_partitions_revoked"))
    assert revoked.index("self.tables.on_partitions_revoked)(revoked)") < revoked.index("await ")
    stopping = inspect.getsource(function("faust.app.base", "App._stop_consumer"))
    assert stopping.index("self.tables.on_partitions_revoked(assignment)") < stopping.index("await ")


def test_acks_reach_the_names_that_ours_reads() -> None:
    ack = inspect.getsource(stock_consumer.Consumer.ack)
    assert "self._unacked_messages.discard(message)" in ack
    assert "acked_index = self._acked_index[tp]" in ack
    assert "acked_for_tp = self._acked[tp]" in ack


def test_an_event_has_what_runners_use_of_it() -> None:
    used = {name for name in vars(FoldEvent) if not name.startswith("_")}
    assert used == {"value", "message", "ack"}
    assert used <= {*EventT.__slots__, *vars(Event)}


@pytest.mark.parametrize("kind", ["Table", "GlobalTable", "SetTable", "SetGlobalTable"])
def test_every_kind_of_table_passes_the_add_that_refuses_it(kind: str) -> None:
    assert "self.tables.add(" in inspect.getsource(getattr(faust.App, kind))


def test_agents_and_streams_come_by_the_methods_that_refuse_folded_topics() -> None:
    assert faust.App.actor is faust.App.agent
    assert "self.app.stream(self" in inspect.getsource(faust.Channel.stream)


def test_a_crash_is_logged_with_the_words_that_ours_looks_for() -> None:
    assert f'self.log.exception("{leaving.CRASHED}", reason)' in inspect.getsource(Service.crash)


def test_fausts_web_server_stays_off() -> None:
    assert Boot.enable_web is False


@pytest.mark.variants("none")
@pytest.mark.parametrize(
    ("named", "module"), [([], "asyncio"), (["--loop", "uvloop"], "uvloop")], ids=["none", "uvloop"]
)
@pytest.mark.process
def test_workers_run_on_the_loop_that_their_command_line_names(named: list[str], module: str) -> None:
    program = (
        "import holdfast.agents.app\nfrom mode.utils.loops import"
        " get_event_loop\nprint(type(get_event_loop()).__module__)"
    )
    told = subprocess.run(
        [sys.executable, "-P", "-c", program, *named],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    assert told.stdout.strip().split(".")[0] == module

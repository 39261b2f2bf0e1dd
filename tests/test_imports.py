"""The rules on imports between rooms (docs/IMPORTS.md).

The table below is the rule; everything else here only reads the code against it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import pytest

from tests.support.places import ROOT

# What each room may import of holdfast, besides itself. cli, dev and testing may import anything, and nothing
# may import them or agents.
ROOMS: Mapping[str, frozenset[str] | None] = {
    "errors": frozenset(),
    "clock": frozenset(),
    "extras": frozenset(),
    "terminal": frozenset(),
    "logs": frozenset({"terminal"}),
    "loop_thread": frozenset({"errors"}),
    "tracing": frozenset({"core", "errors"}),
    "config": frozenset({"errors"}),
    "maven": frozenset({"clock", "errors"}),
    "jars": frozenset({"clock", "errors", "maven"}),
    "core": frozenset({"errors"}),
    "schemas": frozenset({"core", "config", "clock", "errors"}),
    "streams": frozenset({"core"}),
    "models": frozenset({"core", "errors"}),
    "embedded": frozenset({"models", "core", "clock", "errors", "loop_thread"}),
    "kafka": frozenset({"core", "config", "clock", "errors"}),
    "tables": frozenset({"kafka", "core", "clock", "errors"}),
    "outbox": frozenset({"kafka", "core", "config", "clock", "errors", "tracing"}),
    "clients": frozenset({"kafka", "schemas", "core", "config", "clock", "errors", "loop_thread", "tracing"}),
    "web": frozenset({"config", "clock"}),
    "agents": frozenset(
        {
            "console",
            "extras",
            "web",
            "tables",
            "outbox",
            "clients",
            "kafka",
            "schemas",
            "core",
            "config",
            "logs",
            "terminal",
            "clock",
            "errors",
            "tracing",
        }
    ),
    "pipeline": frozenset(
        {"clients", "tables", "kafka", "schemas", "core", "config", "clock", "errors", "jars", "loop_thread"}
    ),
    "console": frozenset(
        {"web", "clients", "kafka", "outbox", "pipeline", "core", "config", "clock", "errors"}
    ),
    "cli": None,
    "dev": None,
    "testing": None,
}
# What each wing of a room, or module at the room's root, may import of the same room, besides itself; and so
# of large wings.
WINGS: Mapping[str, Mapping[str, frozenset[str]]] = {
    "core": {
        "untrusted": frozenset(),
        "value_types": frozenset(),
        "kafka": frozenset(),
        "engine": frozenset({"kafka", "untrusted", "value_types"}),
        "ranges": frozenset({"untrusted"}),
        "claims": frozenset({"engine", "untrusted"}),
        "member": frozenset({"claims", "engine", "kafka"}),
        "groups": frozenset({"member", "claims", "engine", "kafka", "untrusted"}),
        "producers": frozenset({"engine", "kafka", "untrusted"}),
        "outbox": frozenset({"engine", "kafka", "untrusted"}),
        "broker_logs": frozenset({"engine", "kafka"}),
        "streams": frozenset({"engine"}),
    },
    "clients": {
        "topics": frozenset(),
        "tables": frozenset(),
        "producers": frozenset(),
        "logs": frozenset(),
        "quarantine": frozenset({"topics"}),
        "claims": frozenset({"topics"}),
        "groups": frozenset({"claims", "topics"}),
        "ranges": frozenset({"claims", "topics"}),
    },
    "embedded": {
        "settings": frozenset(),
        "security": frozenset({"kept_room", "settings"}),
        "protocol": frozenset(),
        "configs": frozenset({"settings"}),
        "faults": frozenset(),
        "fetch_sessions": frozenset({"protocol"}),
        "kept_room": frozenset(),
        "recurring": frozenset(),
        "logs": frozenset({"configs", "protocol"}),
        "storage": frozenset({"configs", "logs"}),
        "topics": frozenset({"configs", "kept_room", "logs", "protocol", "settings", "storage"}),
        "internal_log": frozenset({"protocol", "topics"}),
        "groups": frozenset({"internal_log", "kept_room", "protocol", "recurring", "settings", "topics"}),
        "transactions": frozenset(
            {
                "faults",
                "groups",
                "internal_log",
                "kept_room",
                "logs",
                "recurring",
                "settings",
                "storage",
                "topics",
            }
        ),
        "upkeep": frozenset({"configs", "logs", "recurring", "settings", "topics"}),
        "cluster": frozenset(
            {
                "upkeep",
                "faults",
                "fetch_sessions",
                "groups",
                "kept_room",
                "logs",
                "security",
                "settings",
                "storage",
                "topics",
                "transactions",
            }
        ),
        "apis": frozenset(
            {
                "cluster",
                "configs",
                "fetch_sessions",
                "groups",
                "internal_log",
                "kept_room",
                "logs",
                "protocol",
                "security",
                "topics",
            }
        ),
        "serving": frozenset({"apis", "cluster", "faults", "protocol", "recurring", "security", "settings"}),
        "kafka": frozenset({"apis", "cluster", "faults", "security", "serving", "settings", "topics"}),
    },
    "embedded.storage": {
        "disk": frozenset(),
        "folder_lock": frozenset({"disk"}),
        "checkpoints": frozenset({"disk"}),
        "catalog": frozenset({"disk"}),
        "durable_answers": frozenset({"disk"}),
        "segments": frozenset({"checkpoints", "disk"}),
        "storage": frozenset({"catalog", "disk"}),
        "folder": frozenset({"catalog", "checkpoints", "disk", "folder_lock", "segments"}),
    },
    "embedded.apis": {
        "call": frozenset(),
        "coordinators": frozenset({"call"}),
        "describing": frozenset({"call"}),
        "patterns": frozenset(),
        "groups": frozenset({"call", "coordinators", "describing", "patterns"}),
        "transactions": frozenset({"call", "coordinators", "groups", "patterns"}),
        "records": frozenset({"call", "transactions"}),
        "topics": frozenset({"call", "describing"}),
        "security": frozenset({"call"}),
        "handlers": frozenset(
            {"call", "coordinators", "describing", "groups", "records", "security", "topics", "transactions"}
        ),
    },
    "kafka": {
        "codes": frozenset(),
        "loop_turn": frozenset(),
        "frame_sender": frozenset(),
        "leader_requests": frozenset(),
        "committed_text": frozenset(),
        "librdkafka_log": frozenset(),
        "clients": frozenset({"librdkafka_log"}),
        "coordinator_admin": frozenset({"clients", "codes"}),
        "group_members": frozenset({"codes", "coordinator_admin", "librdkafka_log"}),
        "requests": frozenset({"codes"}),
        "reading": frozenset({"clients", "codes", "leader_requests", "requests"}),
        "fetching": frozenset({"codes", "requests"}),
        "transactions": frozenset({"codes", "loop_turn", "requests"}),
    },
    "outbox": {
        "troubles": frozenset(),
        "schema": frozenset(),
        "migrations": frozenset({"schema"}),
        "writer": frozenset({"schema"}),
        "settings": frozenset({"schema"}),
        "topics": frozenset({"schema", "settings", "troubles"}),
        "grants": frozenset({"schema", "settings", "topics"}),
        "goharvest": frozenset({"settings"}),
        "commands": frozenset({"settings"}),
        "command_log": frozenset({"commands", "settings"}),
        "election": frozenset({"troubles"}),
        "harvest": frozenset(
            {"schema", "settings", "topics", "troubles", "commands", "command_log", "election"}
        ),
        "trial": frozenset({"schema", "writer", "harvest"}),
    },
    "agents": {
        "descriptors": frozenset(),
        "serving": frozenset(),
        "cluster": frozenset({"descriptors"}),
        "books_metrics": frozenset({"serving"}),
        "metrics": frozenset({"books_metrics", "serving"}),
        "globals": frozenset(),
        "partitions": frozenset({"cluster", "globals", "metrics"}),
        "faust": frozenset({"partitions"}),
        "web": frozenset({"descriptors", "metrics", "serving"}),
        "services": frozenset(),
        "app": frozenset({"faust", "metrics", "partitions", "services", "web"}),
        "builtin": frozenset({"app", "services"}),
        "__main__": frozenset({"builtin"}),
    },
    "dev": {
        "parent_death": frozenset(),
        "ports": frozenset(),
        "processes": frozenset(),
        "signals": frozenset(),
        "waits": frozenset(),
        "memory_tables": frozenset(),
        "embedded_process": frozenset({"broker", "processes", "signals"}),
        "broker": frozenset({"parent_death", "ports", "processes"}),
        "fixtures": frozenset({"broker"}),
        "databases": frozenset({"parent_death", "ports", "processes"}),
        "demo": frozenset(
            {"broker", "embedded_process", "parent_death", "ports", "processes", "signals", "waits"}
        ),
    },
    "cli": {
        "command_group": frozenset(),
        "asked": frozenset(),
        "cures": frozenset(),
        "status_line": frozenset(),
        "output": frozenset({"status_line"}),
        "options": frozenset({"output"}),
        "watching": frozenset({"output"}),
        "demo": frozenset({"command_group", "output"}),
        "project": frozenset({"output"}),
        "size": frozenset({"options", "output"}),
        "__main__": frozenset({"command_group", "cures", "options", "output"}),
        "entry": frozenset({"__main__"}),
        "config": frozenset({"options", "output"}),
        "dev": frozenset({"command_group", "options", "output"}),
        "waiting_origins": frozenset({"options"}),
        "doctor": frozenset({"cures", "options", "output", "waiting_origins"}),
        "lake": frozenset({"options", "status_line"}),
        "logs": frozenset({"command_group", "lake", "options", "output"}),
        "outbox": frozenset({"asked", "command_group", "options", "output"}),
        "pipeline": frozenset({"asked", "command_group", "lake", "options", "output", "status_line"}),
        "replay": frozenset({"command_group", "lake", "options", "output"}),
        "tables": frozenset({"command_group", "options", "output", "watching"}),
        "topics": frozenset({"command_group", "cures", "options", "output"}),
        "worker": frozenset({"cures", "options", "output"}),
        "console": frozenset({"options", "output"}),
        "groups": frozenset(
            {"asked", "command_group", "logs", "options", "output", "waiting_origins", "watching"}
        ),
    },
    "console": {
        "place": frozenset(),
        "access": frozenset({"place"}),
        "asking": frozenset(),
        "watching": frozenset({"asking"}),
        "showing": frozenset({"access"}),
        "desk": frozenset({"asking", "watching"}),
        "acting": frozenset({"access", "desk", "showing", "watching"}),
        "pages": frozenset({"access", "asking", "desk", "showing", "watching"}),
        "openid": frozenset({"access", "place"}),
        "provider_views": frozenset({"access", "openid"}),
        "live": frozenset({"access", "desk", "pages", "showing", "watching"}),
        "views": frozenset(
            {"access", "acting", "desk", "live", "openid", "pages", "provider_views", "showing"}
        ),
        "opening": frozenset(
            {"access", "acting", "asking", "desk", "live", "openid", "place", "views", "watching"}
        ),
        "server": frozenset({"asking", "opening", "place", "showing", "watching"}),
        "on_worker": frozenset({"asking", "opening", "place", "showing"}),
    },
    "console.watching": {
        "reports": frozenset(),
        "blocking": frozenset(),
        "ownership": frozenset(),
        "groups": frozenset({"blocking", "ownership"}),
        "picture": frozenset({"reports"}),
        "findings": frozenset({"picture", "reports"}),
        "history": frozenset({"picture"}),
        "beside": frozenset({"findings"}),
        "outbox": frozenset({"findings"}),
        "refused": frozenset({"findings"}),
        "landed": frozenset({"findings"}),
        "watch": frozenset({"beside", "groups", "history", "picture", "reports"}),
    },
    "dev.demo": {
        "narrator": frozenset(),
        "processes": frozenset(),
        "broker": frozenset(),
        "environment": frozenset({"broker", "processes"}),
        "beside": frozenset(),
        "steps": frozenset({"beside", "environment", "narrator", "processes"}),
        "run": frozenset({"environment", "narrator", "processes", "steps"}),
    },
    "outbox.harvest": {
        "table": frozenset(),
        "shard": frozenset({"table"}),
        "publishing": frozenset({"shard", "table"}),
        "strategies": frozenset({"publishing", "shard", "table"}),
        "harvester": frozenset({"shard", "strategies", "table"}),
    },
    "agents.partitions": {
        "gate": frozenset(),
        "membership": frozenset(),
        "types": frozenset({"membership"}),
        "batches": frozenset({"types"}),
        "readiness": frozenset({"membership", "types"}),
        "held": frozenset({"batches", "types"}),
        "upkeep": frozenset({"batches", "gate", "held", "types"}),
        "ownership": frozenset({"batches", "gate", "held", "membership", "readiness", "types", "upkeep"}),
        "manager": frozenset(
            {"batches", "gate", "held", "membership", "ownership", "readiness", "types", "upkeep"}
        ),
    },
    "core.member": {
        "actions": frozenset(),
        "settings": frozenset(),
        "claim": frozenset({"actions"}),
        "logs": frozenset({"settings"}),
        "schedule": frozenset({"claim"}),
        "shell_requests": frozenset({"actions", "claim", "settings"}),
        "state": frozenset({"claim", "logs", "schedule", "settings", "shell_requests"}),
        "conduct": frozenset({"actions", "claim", "logs", "settings", "state"}),
        "member": frozenset({"actions", "claim", "conduct", "settings", "state"}),
    },
    "core.engine": {
        "batches": frozenset(),
        "commit_notes": frozenset(),
        "emits": frozenset(),
        "linger": frozenset(),
        "query_wire": frozenset(),
        "state": frozenset(),
        "event_times": frozenset(),
        "origins": frozenset({"emits", "event_times"}),
        "trace_context": frozenset({"emits"}),
        "emit_columns": frozenset({"emits", "origins"}),
        "declared": frozenset({"batches", "emit_columns", "emits", "event_times", "origins", "state"}),
        "choices": frozenset({"declared"}),
        "positions": frozenset({"declared", "state"}),
        "fold": frozenset(
            {
                "batches",
                "choices",
                "declared",
                "emit_columns",
                "emits",
                "event_times",
                "origins",
                "positions",
                "state",
                "trace_context",
            }
        ),
        "merge": frozenset(
            {
                "batches",
                "choices",
                "declared",
                "emits",
                "event_times",
                "fold",
                "origins",
                "positions",
                "state",
            }
        ),
        "upgrades": frozenset({"declared"}),
        "migrating": frozenset({"batches", "declared", "fold", "positions", "state"}),
    },
    "core.streams": {
        "emitting": frozenset(),
        "reading": frozenset(),
        "aggregations": frozenset({"emitting", "reading"}),
        "steps": frozenset({"emitting"}),
        "windowing": frozenset({"emitting", "reading"}),
        "distinct": frozenset({"aggregations", "emitting"}),
        "joins": frozenset({"emitting", "reading", "windowing"}),
    },
    "clients.claims": {
        "logs": frozenset(),
        "options": frozenset(),
        "claiming": frozenset({"logs", "options"}),
        "balanced": frozenset({"claiming", "logs", "options"}),
        "messages": frozenset({"claiming"}),
        "settings": frozenset({"claiming", "options"}),
        "base": frozenset({"claiming", "messages"}),
        "blocking": frozenset({"balanced", "base", "messages", "settings"}),
        "consumer": frozenset({"balanced", "base", "claiming", "messages", "settings"}),
    },
    "pipeline": {
        "progress": frozenset(),
        "spark": frozenset(),
        "topic": frozenset(),
        "bronze": frozenset({"topic"}),
        "run": frozenset({"progress", "spark"}),
        "stopping": frozenset({"bronze", "topic"}),
        "checks": frozenset({"bronze", "topic"}),
        "logs": frozenset({"bronze", "checks", "topic"}),
        "folds": frozenset({"bronze", "logs", "progress", "run", "stopping", "topic"}),
        "landing": frozenset({"bronze", "folds", "run", "spark", "topic"}),
        "upkeep": frozenset({"bronze", "histories", "landing"}),
        "landed_trimming": frozenset({"trimming"}),
        "trimming": frozenset({"bronze", "checks"}),
        "output": frozenset({"folds", "run"}),
        "broker_rows": frozenset({"replay", "topic"}),
        "hanging": frozenset({"broker_rows"}),
        "replay": frozenset({"bronze", "folds", "output", "run", "spark"}),
        "pages": frozenset({"bronze"}),
        "comparing": frozenset({"folds", "pages", "replay"}),
        "audit": frozenset({"bronze", "folds", "replay", "run", "spark", "topic"}),
        "verify": frozenset({"bronze", "folds", "replay", "topic"}),
        "bootstrap": frozenset({"bronze", "folds", "replay", "run", "topic", "verify"}),
        "histories": frozenset({"bronze", "folds", "landing", "logs", "replay", "run", "spark", "topic"}),
        "worker_daemon": frozenset({"histories", "landing", "replay"}),
        "derived": frozenset({"bronze", "folds", "histories", "run"}),
        "reporting": frozenset({"bronze", "derived", "histories", "pages", "spark"}),
    },
}
# Modules of the import root that are one topic with another.
TOPIC = {
    "class_archive": "jars",
}
PACKAGES: Mapping[str, frozenset[str]] = {
    "errors": frozenset(),
    "clock": frozenset(),
    "extras": frozenset(),
    "logs": frozenset(),
    "terminal": frozenset(),
    "loop_thread": frozenset(),
    "tracing": frozenset({"opentelemetry"}),
    "config": frozenset({"msgspec"}),
    "maven": frozenset(),
    "jars": frozenset({"pyspark"}),
    "core": frozenset({"cramjam", "datasketches", "google_crc32c", "msgspec"}),
    "schemas": frozenset({"confluent_kafka", "fastavro", "google", "jsonschema_rs", "msgspec"}),
    "streams": frozenset(),
    "models": frozenset({"msgspec"}),
    "embedded": frozenset({"cryptography", "google_crc32c", "msgspec"}),
    "kafka": frozenset({"aiohttp", "aiokafka", "confluent_kafka", "google_crc32c"}),
    "tables": frozenset({"confluent_kafka", "msgspec", "rocksdict"}),
    "outbox": frozenset({"alembic", "confluent_kafka", "msgspec", "psycopg", "sqlalchemy"}),
    "clients": frozenset({"aiohttp", "confluent_kafka", "msgspec", "yarl"}),
    "agents": frozenset(
        {
            "aiohttp",
            "aiokafka",
            "confluent_kafka",
            "faust",
            "mode",
            "msgspec",
            "multidict",
            "prometheus_client",
            "yarl",
        }
    ),
    "pipeline": frozenset(
        {
            "confluent_kafka",
            "delta",
            "deltalake",
            "google_crc32c",
            "msgspec",
            "numpy",
            "pandas",
            "pyarrow",
            "pyspark",
        }
    ),
    "web": frozenset({"aiohttp"}),
    "console": frozenset(
        {"aiohttp", "authlib", "confluent_kafka", "jinja2", "markupsafe", "joserfc", "msgspec"}
    ),
}
# A fold may see nothing but its arguments, so what it is made of may not even name these.
IMPURE = frozenset(
    [
        "time",
        "random",
        "secrets",
        "asyncio",
        "threading",
        "multiprocessing",
        "concurrent",
        "os",
        "io",
        "pathlib",
        "socket",
        "ssl",
        "select",
        "selectors",
        "signal",
        "subprocess",
        "logging",
        "tempfile",
        "shutil",
        "uuid",
        "importlib",
    ]
)
INSIDE_FUNCTIONS_ONLY: Mapping[str, frozenset[str]] = {
    "console": frozenset({"authlib", "joserfc"}),
    "outbox": frozenset({"psycopg"}),
    "embedded": frozenset({"cryptography"}),
    "pipeline": frozenset({"pyspark", "delta"}),
    "jars": frozenset({"pyspark"}),
    "tracing": frozenset({"opentelemetry"}),
    "schemas": frozenset({"confluent_kafka", "fastavro", "google", "jsonschema_rs"}),
}


def room_of(module: str) -> str:
    """Return the room of holdfast.<...>; modules of the import root are rooms of their own."""
    first = module.split(".")[1] if "." in module else module
    return TOPIC.get(first, first)


def wing_of(parent: str, module: str) -> str:
    """Return the wing of holdfast.<parent>.<wing>..., which is a module for one at the parent's root, and ""
    for the parent itself and for what lies outside.
    """
    beginning = f"holdfast.{parent}."
    return module.removeprefix(beginning).split(".")[0] if module.startswith(beginning) else ""


def imported(tree: ast.Module) -> Iterator[tuple[str, int, bool]]:
    """Yield (module, line, whether inside a function) of every import, the names of `from holdfast import
    x` resolved.
    """
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, inside = pending.pop()
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        # what only a type checker sees does not run
        skip = node.body if isinstance(node, ast.If) and _for_types(node.test) else ()
        pending += [(child, inside) for child in ast.iter_child_nodes(node) if child not in skip]
        match node:
            case ast.Import():
                yield from ((alias.name, node.lineno, inside) for alias in node.names)
            case ast.ImportFrom(level=0, module="holdfast"):
                yield from ((f"holdfast.{alias.name}", node.lineno, inside) for alias in node.names)
            case ast.ImportFrom(level=0, module="uuid", names=[ast.alias(name="UUID")]):
                yield ("uuid.UUID", node.lineno, inside)
            case ast.ImportFrom():
                yield ("." * node.level + (node.module or ""), node.lineno, inside)
            case ast.Call(
                func=ast.Name(id="__import__") | ast.Attribute(attr="import_module"), args=[first, *_]
            ):
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield (first.value, node.lineno, inside)


def _for_types(test: ast.expr) -> bool:
    return any(
        (isinstance(each, ast.Name) and each.id == "TYPE_CHECKING")
        or (isinstance(each, ast.Attribute) and each.attr == "TYPE_CHECKING")
        for each in ast.walk(test)
    )


@dataclass(frozen=True, slots=True)
class ParsedModule:
    """The parts of a module's text that the rules need. The trees of all modules would take 100 MB."""

    imports: tuple[tuple[str, int, bool], ...]
    """See `imported`."""
    statements: tuple[ast.Import | ast.ImportFrom, ...]
    classes: tuple[str, ...]
    """Those of the top level."""
    clock_readings: tuple[int, ...]
    clients_made: tuple[int, ...]


@cache
def parsed(text: str) -> ParsedModule:
    """Return the parts of *text* that the rules need; it is parsed once for all of them."""
    tree = ast.parse(text)
    nodes = list(ast.walk(tree))
    return ParsedModule(
        imports=tuple(imported(tree)),
        statements=tuple(node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)),
        classes=tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef)),
        clock_readings=tuple(_clock_readings(nodes)),
        clients_made=tuple(_clients_made(nodes)),
    )


def violations(sources: Mapping[str, str]) -> list[str]:
    """Return the breaches of the rules in *sources* (text by module name), each with its line."""
    found = []
    for module, text in sorted(sources.items()):
        if module == "holdfast":
            continue  # has a rule of its own, below
        for name, line, inside in parsed(text).imports:
            why = _why_not(room_of(module), name, inside) or _why_not_of_wing(module, name)
            if why is not None:
                found.append(f"{module}:{line} imports {name}: {why}")
    return found


def _why_not(room: str, name: str, inside: bool) -> str | None:
    top = name.split(".")[0]
    if name.startswith("."):
        return "relative"
    if top in ("agents", "tables", "outbox", "pipeline", "core"):
        return f"write holdfast.{name}"
    allowed = ROOMS[room]
    if top == "holdfast":
        other = room_of(name)
        if other not in ROOMS:
            return f"{other} is not a room; add it to the table"
        if allowed is None or other == room or other in allowed or name.removeprefix("holdfast.") in allowed:
            return None
        return f"{room} may import {', '.join(sorted(allowed)) or 'nothing'} of holdfast"
    if room == "core" and top in IMPURE and name != "uuid.UUID":  # a type alone
        return "core is pure"
    if top in INSIDE_FUNCTIONS_ONLY.get(room, ()) and not inside:
        return "only inside functions: what imports this module must not need it"
    if allowed is not None and top not in sys.stdlib_module_names and top not in PACKAGES[room]:
        return f"not among the packages of {room}"
    return None


def _why_not_of_wing(module: str, name: str) -> str | None:
    for parent, wings in WINGS.items():
        wing, other = wing_of(parent, module), wing_of(parent, name)
        if not wing or not other or other == wing:
            continue
        if wing not in wings:
            return f"{parent}.{wing} is not a wing; add it to the table"
        if other not in wings[wing]:
            return f"{parent}.{wing} may import {', '.join(sorted(wings[wing])) or 'nothing'} of {parent}"
    return None


def arrows(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Return which modules each module imports, wherever in it, for type checking too."""
    out: dict[str, set[str]] = {}
    for module, text in sources.items():
        found = out.setdefault(module, set())
        for node in parsed(text).statements:
            match node:
                case ast.ImportFrom(level=0, module=str(parent), names=names):
                    found |= {
                        f"{parent}.{each.name}" if f"{parent}.{each.name}" in sources else parent
                        for each in names
                    }
                case ast.Import(names=names):
                    found |= {each.name for each in names}
        found &= set(sources)
        found -= {module, "holdfast"}  # the face imports each name at its first use
    return out


def circles(arrows: Mapping[str, set[str]]) -> list[str]:
    """Return the modules in circles and those that import them: modules without imports among the rest are
    removed again and again, and these are left.
    """
    left = {module: set(found) for module, found in arrows.items()}
    while done := {module for module, found in left.items() if not found & set(left)}:
        left = {module: found for module, found in left.items() if module not in done}
    return sorted(left)


@cache
def sources() -> Mapping[str, str]:
    """Return the text of every module of holdfast; rooms at the root are read through their links, as they
    are imported.
    """
    out = {}
    for folder in [ROOT / "holdfast", *(each for each in (ROOT / "holdfast").iterdir() if each.is_symlink())]:
        for path in folder.rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            out[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text()
    return out


def test_every_import_keeps_to_the_rooms() -> None:
    found = violations(sources())
    assert not found, "\n".join(found)


def test_no_import_goes_in_a_circle() -> None:
    assert (
        circles(
            {
                module: found
                for module, found in arrows(sources()).items()
                if module not in ("holdfast", "holdfast.clients")
            }
        )
        == []
    )


def test_a_planted_circle_is_found() -> None:
    planted = {
        "holdfast.core.a": "from holdfast.core import b",
        "holdfast.core.b": "if TYPE_CHECKING:\n    import holdfast.core.a",
    }
    assert circles(
        arrows({**planted, "holdfast.core.c": "import holdfast.core.d", "holdfast.core.d": ""})
    ) == sorted(planted)


def test_the_arrows_between_wings_point_one_way() -> None:
    for room, wings in WINGS.items():
        assert circles({wing: set(found) for wing, found in wings.items()}) == [], room


def test_imports_for_types_keep_to_the_wings_too() -> None:
    """A wing that names the types of another cannot be read without it, whatever runs first."""
    assert not [
        f"{module}:{node.lineno} imports {node.module}: {why}"
        for module, text in sources().items()
        for node in parsed(text).statements
        if isinstance(node, ast.ImportFrom) and node.module
        if (why := _why_not_of_wing(module, node.module)) is not None
    ]


def test_every_wing_is_there() -> None:
    for parent, wings in WINGS.items():
        assert {wing_of(parent, module) for module in sources()} - {""} == set(wings), parent


PAGE = ROOT / "docs" / "IMPORTS.md"
LIMIT_LINES = 40
"""Of a room's page: one screen."""
BEGIN, END = "<!-- drawn from tests/test_imports.py -->\n", "<!-- end -->\n"


def drawn() -> str:
    """Return the two tables as docs/IMPORTS.md shows them:

    `PYTHONPATH=. python -P -m tests.test_imports` writes them there.
    """
    out = ["| Room | may import of holdfast | and of these packages |", "|---|---|---|"]
    for room, allowed in ROOMS.items():
        packages = ", ".join(sorted(PACKAGES[room])) if room in PACKAGES else "any"
        out.append(
            f"| `{room}` | {'anything' if allowed is None else ', '.join(sorted(allowed)) or 'nothing'} |"
            f" {packages or 'none'} |"
        )
    out += ["", "| Wing | may import of its room |", "|---|---|"]
    out += [
        f"| `{room}.{wing}` | {', '.join(sorted(allowed)) or 'nothing'} |"
        for room, wings in WINGS.items()
        for wing, allowed in wings.items()
    ]
    return "\n".join(out) + "\n"


def redrawn(page: str) -> str:
    """Return *page* with the tables drawn again."""
    before, _, rest = page.partition(BEGIN)
    return before + BEGIN + drawn() + END + rest.partition(END)[2]


def test_the_page_of_imports_shows_these_tables() -> None:
    page = PAGE.read_text()
    assert page == redrawn(page), "run PYTHONPATH=. python -P -m tests.test_imports"


def test_every_room_has_a_page_of_one_screen() -> None:
    design = (ROOT / "docs" / "DESIGN.md").read_text()
    rooms = design.partition("## Rooms\n")[2].partition("\n## ")[0].split("\n### ")[1:]
    assert max(page.count("\n") for page in rooms) < LIMIT_LINES
    assert {room for room in ROOMS if f"`{room}`" not in "".join(rooms)} == set()


def class_names(sources: Mapping[str, str]) -> dict[str, list[str]]:
    """Return where each class of a module's top level is declared, by its name."""
    out: dict[str, list[str]] = {}
    for module, text in sources.items():
        for name in parsed(text).classes:
            out.setdefault(name, []).append(module)
    return out


def test_a_class_name_means_one_thing() -> None:
    assert {name: found for name, found in class_names(sources()).items() if len(found) > 1} == {}


def test_a_planted_second_meaning_is_found() -> None:
    assert class_names({"a": "class Seen: ...", "b": "class Seen: ..."}) == {"Seen": ["a", "b"]}


CLOCKS = {
    "time": "time time_ns monotonic monotonic_ns perf_counter perf_counter_ns process_time thread_time",
    "datetime": "now utcnow today",
}
"""The functions that read a clock, by the module or class that they are attributes of.

An event loop's own time is for its own timers.
"""


def _clock_readings(nodes: list[ast.AST]) -> Iterator[int]:
    """Yield the lines where a clock is read."""
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=attr) if (
                attr in CLOCKS.get(name, "").split()
            ):
                yield node.lineno
            case ast.ImportFrom(module="time", names=names) if any(
                each.name in CLOCKS["time"].split() for each in names
            ):
                yield node.lineno


def test_nothing_but_the_clock_reads_the_clock() -> None:
    found = [
        f"{name}:{line}"
        for name, text in sources().items()
        if name != "holdfast.clock"
        for line in parsed(text).clock_readings
    ]
    assert not found, f"take the time from holdfast.clock, so that a test can move it: {', '.join(found)}"


def test_leaders_are_asked_with_a_timeout_that_cannot_abort_the_process() -> None:
    found = [
        name
        for name, text in sources().items()
        if name != "holdfast.kafka.leader_requests" and re.search(r"\.(list_offsets|delete_records)\(", text)
    ]
    assert not found, f"ask by holdfast.kafka.leader_requests, which says why: {', '.join(found)}"


@pytest.mark.parametrize(
    "text",
    [
        "import time\ntime.monotonic()",
        "from time import time_ns",
        "datetime.datetime.now(UTC)",
        "datetime.now()",
        "f = time.monotonic",
    ],
)
def test_a_planted_reading_is_found(text: str) -> None:
    assert parsed(text).clock_readings


KAFKA_CLIENTS = frozenset(
    [
        "Producer",
        "Consumer",
        "AdminClient",
        "SerializingProducer",
        "DeserializingConsumer",
        "AIOProducer",
        "AIOConsumer",
        "AIOKafkaClient",
        "AIOKafkaProducer",
        "AIOKafkaConsumer",
        "AIOKafkaAdminClient",
    ]
)
"""The clients of confluent_kafka and aiokafka. Only holdfast/kafka makes them: their loggers, log levels and
error callbacks are set there, one way.
"""


def _clients_made(nodes: list[ast.AST]) -> Iterator[int]:
    """Yield the lines where a Kafka client's class is called, derived from or handed on, so that other code
    calls it. In an annotation it may be named.
    """
    named = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.ImportFrom) and _is_kafka(node.module)
        for alias in node.names
        if alias.name in KAFKA_CLIENTS
    }
    modules = {
        (alias.asname or alias.name).split(".")[0]
        for node in nodes
        if isinstance(node, ast.Import)
        for alias in node.names
        if _is_kafka(alias.name)
    }
    if not named and not modules:
        return
    notes = {id(part) for note in _annotations(nodes) for part in ast.walk(note)}
    for node in nodes:
        match node:
            case ast.Name(id=name) if name in named and id(node) not in notes:
                yield node.lineno
            case ast.Attribute(attr=name) if name in KAFKA_CLIENTS and id(node) not in notes:
                if ast.unparse(node).split(".")[0] in modules:
                    yield node.lineno


def _is_kafka(module: str | None) -> bool:
    return (module or "").split(".")[0] in ("confluent_kafka", "aiokafka")


def _annotations(nodes: list[ast.AST]) -> Iterator[ast.expr]:
    for node in nodes:
        match node:
            case ast.arg(annotation=ast.expr() as note) | ast.AnnAssign(annotation=note):
                yield note
            case (
                ast.FunctionDef(returns=ast.expr() as note) | ast.AsyncFunctionDef(returns=ast.expr() as note)
            ):
                yield note


def test_only_the_kafka_room_makes_kafka_clients() -> None:
    found = [
        f"{name}:{line}"
        for name, text in sources().items()
        if room_of(name) != "kafka"
        for line in parsed(text).clients_made
    ]
    assert not found, (
        f"use the makers of holdfast.kafka.clients or holdfast.kafka.requests.connections: {', '.join(found)}"
    )


@pytest.mark.parametrize(
    "text",
    [
        "from confluent_kafka import Producer\nmade = Producer({})",
        "from confluent_kafka import Consumer as C\nmade = C({})",
        "import confluent_kafka\nmade = confluent_kafka.Consumer({})",
        "import confluent_kafka.admin as kafka\nmade = kafka.AdminClient({})",
        "def f():\n    from confluent_kafka.admin import AdminClient\n    return AdminClient({})",
        "from confluent_kafka import Producer\ndef f(make=Producer): ...",
        "from confluent_kafka import Producer\nclass Mine(Producer): ...",
        "from aiokafka.client import AIOKafkaClient\nmade = AIOKafkaClient()",
    ],
)
def test_a_planted_client_is_found(text: str) -> None:
    assert parsed(text).clients_made


def test_a_client_may_be_named_in_an_annotation() -> None:
    text = (
        "from confluent_kafka import Consumer\nx: Consumer | None = None\ndef f(y: Consumer) ->"
        " list[Consumer]: ..."
    )
    assert parsed(text).clients_made == ()
    assert parsed("class Producer: ...\nmade = Producer()").clients_made == ()


def test_every_room_is_read() -> None:
    rooms = {room_of(module) for module in sources() if module != "holdfast"}
    assert rooms == set(ROOMS)


def test_the_import_root_itself_imports_nothing() -> None:
    """tests/test_exports.py has what its names bring when they are used."""
    assert {name for name, _, _ in imported(ast.parse(sources()["holdfast"]))} == {
        "__future__",
        "typing",
        "importlib",
        "holdfast.extras",
    }


PLANTED = [
    *(
        ("core.claims", f"import {module}", "core is pure")
        for module in ("time", "random", "asyncio", "threading", "os", "socket", "logging")
    ),
    ("core.claims", "from os.path import join", "core is pure"),
    ("core.claims", "import rocksdict", "not among the packages of core"),
    ("core.claims", "def f():\n    import time", "core is pure"),
    ("core.claims", "__import__('time')", "core is pure"),
    ("core.claims", "from holdfast.clock import system_clock", "core may import errors of holdfast"),
    ("core.claims", "from holdfast import tables", "core may import errors of holdfast"),
    (
        "tables.store",
        "from holdfast.config import Settings",
        "tables may import clock, core, errors, kafka of holdfast",
    ),
    ("tables.store", "import faust", "not among the packages of tables"),
    ("outbox.harvester", "from holdfast.tables.store import PartitionStore", "outbox may import"),
    ("clients.tables", "from holdfast.outbox.election import elect", "clients may import"),
    ("clients.tables", "import holdfast.agents.app", "clients may import"),
    ("pipeline.replay", "from holdfast.outbox.writer import OutboxWriter", "pipeline may import"),
    ("pipeline.replay", "import pyspark", "only inside functions"),
    ("pipeline.replay", "class A:\n    from pyspark.sql import SparkSession", "only inside functions"),
    ("pipeline.replay", "try:\n    import delta\nexcept ImportError:\n    pass", "only inside functions"),
    *(
        (room, "from holdfast.cli.output import Output", f"{room.split('.')[0]} may import")
        for room in ("agents.web", "pipeline.land", "config")
    ),
    *(
        (room, "import holdfast.dev.broker.cluster", f"{room.split('.')[0]} may import")
        for room in ("agents.web", "clients.tables", "jars")
    ),
    ("agents.web", "from . import app", "relative"),
    ("agents.web", "import tables", "write holdfast.tables"),
    ("cli.topics", "import holdfast.nowhere", "not a room"),
    ("config.security", "import holdfast.clock", "config may import errors of holdfast"),
]


@pytest.mark.parametrize(("module", "text", "why"), PLANTED)
def test_a_planted_violation_is_found(module: str, text: str, why: str) -> None:
    (found,) = violations({f"holdfast.{module}": text})
    assert why in found
    assert found.startswith(f"holdfast.{module}:")


@pytest.mark.parametrize(
    ("module", "text"),
    [
        (
            "core.claims",
            (
                "import re\nimport msgspec\nfrom holdfast.errors import FoldError\nfrom holdfast.core import"
                " codec"
            ),
        ),
        ("clients.tables.client", "from holdfast.kafka.codes import NO_TOPIC"),
        ("pipeline.replay", "def run():\n    from pyspark.sql import SparkSession"),
        (
            "pipeline.replay",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pyspark.sql import SparkSession",
        ),
        ("cli.groups.claims", "import holdfast.agents.app\nimport holdfast.dev.broker.cluster\nimport typer"),
    ],
)
def test_allowed_imports_are_not_found(module: str, text: str) -> None:
    assert violations({f"holdfast.{module}": text}) == []


if __name__ == "__main__":
    PAGE.write_text(redrawn(PAGE.read_text()))

"""A request as a handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.embedded.cluster import EmbeddedCluster

Fields: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Call:
    """One request: *fields* by the table of messages, of *version*; *node_id* is the broker that was asked."""

    cluster: EmbeddedCluster
    node_id: int
    version: int
    fields: Fields
    client_id: str = ""
    host: str = "/127.0.0.1"
    principal: str = "ANONYMOUS"


Handler: TypeAlias = Callable[[Call], "Fields | Awaitable[Fields | None] | None"]
"""Answers a call: with fields, with none (a producer that wants no answer), or later."""

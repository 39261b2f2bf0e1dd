"""A registry in memory, or the session's real one, as the registry of this process."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from holdfast.config import SchemaRegistrySettings
from holdfast.dev.databases.schema_registry import SchemaRegistryServer
from holdfast.schemas import registry
from holdfast.schemas.registry import SchemaRegistry

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave this process with the registry that it had."""
    before = registry._current
    yield
    registry._current = before


@pytest.fixture
def memory() -> SchemaRegistry:
    """Give a registry in memory that no other test has."""
    return registry.use(SchemaRegistrySettings(schema_registry_url=f"mock://test-{next(_numbers)}"))


@pytest.fixture
def real(schema_registry: SchemaRegistryServer) -> SchemaRegistry:
    """Give the session's registry."""
    url = schema_registry.url
    return registry.use(SchemaRegistrySettings(schema_registry_url=url, schema_registry_timeout_s=60))

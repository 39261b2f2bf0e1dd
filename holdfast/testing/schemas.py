"""The schema registry of a test without one: in memory, and every schema of the topology is registered in it."""

from __future__ import annotations

from holdfast.clients.topics.schemas import read, written
from holdfast.clients.topics.types import Processors
from holdfast.config import SchemaRegistrySettings
from holdfast.schemas import registry

IN_MEMORY = SchemaRegistrySettings(schema_registry_url="mock://topology")


class KitSchemas:
    """Has the serdes of *processors* read a registry in memory until `close`, in place of the one of the settings."""

    def __init__(self, processors: Processors) -> None:
        self._before: SchemaRegistrySettings | None = None
        if schemas := [*written(processors), *read(processors)]:
            self._before = registry.told()
            asked = registry.use(IN_MEMORY)
            for each in schemas:
                asked.register(str(each.serde.subject), each.serde.needed(asked, register=True))

    def close(self) -> None:
        """Have them read what they read before."""
        if self._before is not None:
            registry.use(self._before)

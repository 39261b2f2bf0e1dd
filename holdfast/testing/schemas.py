"""The schema registry of a test without one: in memory, and every schema of the topology is registered in
it.
"""

from __future__ import annotations

from holdfast.clients.topics.schemas import read, written
from holdfast.clients.topics.types import Processors
from holdfast.config import SchemaRegistrySettings
from holdfast.schemas import registry
from holdfast.schemas.serde import SchemaSerde

IN_MEMORY = SchemaRegistrySettings(schema_registry_url="mock://topology")


class KitSchemas:
    """Has the serdes of *processors* read a registry in memory until `close`, instead of the one of the
    settings.
    """

    def __init__(self, processors: Processors) -> None:
        self._before: SchemaRegistrySettings | None = None
        for each in (*written(processors), *read(processors)):
            self.know(each.serde)

    def know(self, serde: object) -> None:
        """Register the schema of *serde*, if it has one."""
        if not isinstance(serde, SchemaSerde) or serde.subject is None:
            return
        if registry.told() != IN_MEMORY:
            self._before = registry.told()
        asked = registry.use(IN_MEMORY)
        asked.register(serde.subject, serde.needed(asked, register=True))

    def close(self) -> None:
        """Have them read what they read before."""
        if self._before is not None:
            registry.use(self._before)

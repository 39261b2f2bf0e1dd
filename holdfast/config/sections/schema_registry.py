"""Settings of the schema registry, which serdes with schemas read, and `holdfast topics create` writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from holdfast.config.sections.section import Section, names_in, setting


@dataclass(frozen=True, kw_only=True)
class SchemaRegistrySettings(Section):
    """Section `[schema_registry]`: where the registry is, and who asks it."""

    schema_registry_url: str | None = setting(
        None, "URL of the schema registry with Confluent's API; several of one registry with commas"
    )
    schema_registry_username: str | None = setting(None, "user of the schema registry, for basic access")
    schema_registry_password: str | None = setting(None, "password of that user", secret=True)
    schema_registry_ca: Path | None = setting(
        None, "PEM authorities of the schema registry; default those of certifi"
    )
    schema_registry_cert: Path | None = setting(None, "PEM certificate shown to the schema registry")
    schema_registry_key: Path | None = setting(None, "PEM key of that certificate")
    schema_registry_timeout_s: float = setting(
        3.0,
        "longest wait for one answer of the schema registry; folding stands still meanwhile",
        low=0.1,
        high=60,
    )

    @classmethod
    def of(cls, settings: SchemaRegistrySettings) -> Self:
        """Return these settings alone of all *settings*."""
        return cls(**{each.name: getattr(settings, each.name) for each in fields(cls)})

    def problems(self) -> Iterator[str]:
        for url in names_in(self.schema_registry_url or ""):
            if (why := _why_no_registry(url)) is not None:
                yield f"{self.place('schema_registry_url')}: {why}"
        if (self.schema_registry_username is None) != (self.schema_registry_password is None):
            yield "schema_registry_username and schema_registry_password belong together: set both or none"
        elif ":" in (self.schema_registry_username or ""):
            yield f"{self.place('schema_registry_username')} has a colon, which basic access cannot carry"
        if self.schema_registry_key is not None and self.schema_registry_cert is None:
            yield "schema_registry_key needs schema_registry_cert, the certificate that it belongs to"


def _why_no_registry(url: str) -> str | None:
    """Return why *url* cannot be a schema registry's, None when it can; what it holds may be secret.

    >>> _why_no_registry("http://registry:8081") is None, _why_no_registry("mock://tests") is None
    (True, True)
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        return f"one is no URL: {error}; write http://host:port"
    if parts.username is not None or parts.password is not None:
        return (
            "one holds a user or a password, which logs would show: set schema_registry_username and"
            " schema_registry_password"
        )
    if parts.scheme not in ("http", "https", "mock") or not parts.hostname or parts.query or parts.fragment:
        return f"{url!r:.200} is no URL of a registry; write http://host:port or https://host:port"
    return None

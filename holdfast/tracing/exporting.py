"""Exports a worker's or harvester's spans, configured by OpenTelemetry's own environment variables.

`OTEL_TRACES_EXPORTER` names exporters (otlp, console, none), and `OTEL_EXPORTER_OTLP_ENDPOINT` alone means
otlp. Sampling, batching, the exporter's endpoint, headers and certificates, and the resource are read from
the environment by the SDK itself.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib.metadata import entry_points
from threading import Thread
from typing import TYPE_CHECKING, Any, Final

from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

logger = logging.getLogger(__name__)

GROUP: Final = "opentelemetry_traces_exporter"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
INSTALL: Final = "pip install 'holdfast[otel]'"
LENGTHS: Final = ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT")
LIMIT_ATTRIBUTE: Final = 4_096
"""Characters of an attribute, unless the environment names a limit: the text of an exception may quote a
record of any size, and the SDK would send it whole.
"""
END_S: Final = 3.0
"""The limit on waiting for the last spans to be exported when a process ends."""


def wanted(environment: Mapping[str, str]) -> list[str]:
    """Return the exporters that the environment asks for, as their packages name them.

    >>> wanted({}), wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    ([], ['otlp_proto_http'])
    >>> wanted({"OTEL_TRACES_EXPORTER": "console, otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    ['console', 'otlp_proto_grpc']
    >>> wanted({"OTEL_TRACES_EXPORTER": "none"}), wanted({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"})
    ([], [])
    """  # noqa: E501
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    default = "otlp" if any(environment.get(name) for name in ENDPOINTS) else "none"
    named = environment.get("OTEL_TRACES_EXPORTER", "").strip() or default
    found = [name.strip() for name in named.split(",")]
    return [_otlp(environment) if name == "otlp" else name for name in found if name not in ("", "none")]


def _otlp(environment: Mapping[str, str]) -> str:
    protocol = next(
        (found for name in PROTOCOLS if (found := environment.get(name, "").strip())), "http/protobuf"
    )
    known = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
    if protocol not in known:
        raise ConfigError(f"{PROTOCOLS[1]}={protocol!r:.100}: write {' or '.join(known)}")
    return known[protocol]


class Exporting:
    """The exporters of this process, from `start` to `stop`. *service* is its name in traces, unless the
    environment gives one.
    """

    def __init__(self, service: str) -> None:
        self._service = service
        self._provider: TracerProvider | None = None

    def start(self) -> None:
        """Send spans where the environment says; ConfigError for an exporter that cannot be had.

        Nothing is imported where it asks for none. A provider that others have set, such as
        `opentelemetry-instrument`, stays.
        """
        if not (names := wanted(os.environ)):
            return
        try:
            from opentelemetry import trace
            from opentelemetry.sdk.trace import SpanLimits, TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ModuleNotFoundError:
            logger.warning("the environment asks for traces, which are not sent: %(cure)s", {"cure": INSTALL})
            return
        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return
        named = any(os.environ.get(name) for name in LENGTHS)
        provider = TracerProvider(
            resource=self._resource(),
            shutdown_on_exit=False,
            span_limits=SpanLimits(max_attribute_length=None if named else LIMIT_ATTRIBUTE),
        )
        for name in names:
            provider.add_span_processor(BatchSpanProcessor(exporter_named(name)))
        trace.set_tracer_provider(provider)
        self._provider = provider
        logger.info("traces go to %(exporters)s", {"exporters": ", ".join(names)})

    def _resource(self) -> Any:
        from opentelemetry.sdk.resources import Resource

        named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get(
            "OTEL_RESOURCE_ATTRIBUTES", ""
        )
        return Resource.create({} if named else {"service.name": self._service})

    def stop(self) -> None:
        """Send the last spans, for END_S at most: none of the SDK's own waits can be cut."""
        provider, self._provider = self._provider, None
        if provider is not None:
            sender = Thread(target=provider.shutdown, name="last-spans", daemon=True)
            sender.start()
            sender.join(END_S)


def exporter_named(name: str) -> Any:
    """Return a new exporter; ConfigError when none of that name is installed."""
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    if found is None:
        known = ", ".join(sorted({each.name for each in entry_points(group=GROUP)} | {"otlp", "none"}))
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: no exporter {name!r:.100} is installed; there are {known}: {INSTALL}, or"
            " its own package"
        )
    try:
        return found.load()()
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"OTEL_TRACES_EXPORTER: {name} needs {error.name}, which is not installed: {INSTALL}"
        ) from error

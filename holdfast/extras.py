"""Which extra of holdfast brings each package that not every installation has.

A service that claims partitions, asks tables or writes an outbox needs none of them.
"""

from __future__ import annotations

EXTRAS = {
    "jinja2": "console",
    "authlib": "oidc",
    "joserfc": "oidc",
    "faust": "worker",
    "honcho": "worker",
    "mode": "worker",
    "rocksdict": "worker",
    "uvloop": "worker",
    "alembic": "outbox",
    "deltalake": "lake",
    "numpy": "lake",
    "pyarrow": "lake",
    "delta": "spark",
    "pandas": "spark",
    "pyspark": "spark",
    "datasketches": "sketches",
    "cryptography": "tls",
    "fastavro": "avro",
    "google.protobuf": "protobuf",
    "jsonschema": "jsonschema",
    "opentelemetry": "otel",
}
"""Extras by the packages that they bring, as these are imported."""


def extra_of(module: str | None) -> str | None:
    """Return the extra that brings *module*, None where all installations have it, or none.

    >>> extra_of("pyspark.sql"), extra_of("asyncio"), extra_of(None)
    ('spark', None, None)
    """
    return next((extra for package, extra in EXTRAS.items() if f"{module}.".startswith(f"{package}.")), None)

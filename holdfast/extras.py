"""The extra of holdfast for each package that not every installation has.

A service that claims partitions, asks tables or writes an outbox needs none of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

if sys.version_info < (3, 11):  # noqa: UP036  a checkout on sys.path asks no installer
    sys.exit(f"holdfast needs Python 3.11 or newer, this is {sys.version.split()[0]}: take a newer one")

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
    "jsonschema_rs": "jsonschema",
    "opentelemetry": "otel",
}
"""Extras by the packages that they bring, as these are imported."""
_IMPORTING = {
    *("importlib", "importlib._bootstrap", "importlib._bootstrap_external"),
    *("_frozen_importlib", "_frozen_importlib_external"),
}
"""Modules that import for others. `importlib.util` is none of them: it only looks whether a package is there.
"""


def extra_of(module: str | None) -> str | None:
    """Return the extra that brings *module*, None where all installations have it, or none.

    >>> extra_of("pyspark.sql"), extra_of("asyncio"), extra_of(None)
    ('spark', None, None)
    """
    return next((extra for package, extra in EXTRAS.items() if f"{module}.".startswith(f"{package}.")), None)


class MissingExtras:
    """The last of the interpreter's finders. It finds nothing: it says which extra brings a package that one
    of holdfast's modules imports and no other finder has found.

    The imports of all other modules are none of its business. Many of them try a package and do without.
    """

    @classmethod
    def install(cls) -> None:
        if cls not in sys.meta_path:
            sys.meta_path.append(cls)

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Raise ModuleNotFoundError with the extra in its text if holdfast imports a package of an extra."""
        package = next((each for each in EXTRAS if f"{each}.".startswith(f"{name}.")), None)
        if package is not None and (module := _importer()).startswith("holdfast."):
            raise ModuleNotFoundError(
                f"{module} needs {package}, which is not installed: pip install"
                f" 'holdfast[{EXTRAS[package]}]'",
                name=package,
            )


def _importer() -> str:
    """Return the name of the module whose import is on its way."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals["__name__"] in _IMPORTING:
        frame = frame.f_back
    name: str = frame.f_globals["__name__"]
    return name

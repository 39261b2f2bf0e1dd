"""Reads flags, environment and file into one layer of named values, each with its origin. Knows names, not
meanings.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

import msgspec

from holdfast.config.kafka_properties import check_name, check_value, env_names, suggest
from holdfast.config.sections.section import noted
from holdfast.errors import ConfigError

ENV_PREFIX = "HOLDFAST_"
ENV_KAFKA_PREFIX = "HOLDFAST_KAFKA__"
ENV_CONFIG = "HOLDFAST_CONFIG"
NOT_SETTINGS = frozenset({ENV_CONFIG, "HOLDFAST_CACHE", "HOLDFAST_MAVEN_REPOSITORY"})
NOT_SETTINGS_PREFIXES = ("HOLDFAST_DEV_", "HOLDFAST_DEMO_", "HOLDFAST_TEST_", "HOLDFAST_BENCH_")
"""Variables with other readers: where the file is, where jars come from, the development broker, the demo,
tests and benchmarks.
"""

DEFAULT_FILE = "holdfast.toml"
ENV_SPARK_CONF = "HOLDFAST_SPARK_CONF"
KAFKA = "kafka."
SPARK = "spark."
SECTIONS = {
    "web": "web_",
    "console": "console_",
    "schema_registry": "schema_registry_",
    "outbox": "outbox_",
    "stores": "store_",
    "spark": "spark_",
}
"""Tables of the file besides [holdfast], each with the prefix of its names: `[web] port` is `web_port`.
"""

_UNITS = {"": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_SIZE = re.compile(r"\s*(\d+)\s*(KiB|MiB|GiB)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Given:
    """A value as it was written, and where."""

    value: object
    origin: str


Layer = dict[str, Given]


def find_file(flag: str | Path | None, env: Mapping[str, str], folder: Path) -> Path | None:
    """Return the file to read: the flag's, else HOLDFAST_CONFIG's, else holdfast.toml in *folder* if there is
    one.
    """
    named = flag or env.get(ENV_CONFIG)
    if named:
        try:
            return _expanded(Path(named))
        except ValueError as error:
            raise ConfigError(f"file {named}: {error}") from None
    found = folder / DEFAULT_FILE
    return found if found.is_file() else None


def read_layers(
    known: Collection[str],
    problems: list[str],
    *,
    flags: Mapping[str, object],
    env: Mapping[str, str],
    file: Path | None,
) -> Layer:
    """Return the given values, the strongest source winning; names are settings or "kafka.<property>".

    What cannot be read, such as an unknown name, is added to *problems*.
    """
    spelled = {f"{ENV_PREFIX}{name.upper()}": name for name in known}
    spelled |= {f"{ENV_KAFKA_PREFIX}{name}": f"{KAFKA}{prop}" for name, prop in env_names().items()}
    spelled[ENV_SPARK_CONF] = SPARK
    return {
        **_from_file(known, file, problems),
        **_from_env(spelled, env, problems),
        **_from_flags(known, flags, problems),
    }


def _from_flags(known: Collection[str], flags: Mapping[str, object], problems: list[str]) -> Layer:
    layer = {}
    for name, value in flags.items():
        if value is None:
            continue
        with noted(problems):
            if name.startswith(KAFKA):
                name, value = _kafka(name.removeprefix(KAFKA), value, f"flag {name}")
            elif name.startswith(SPARK):
                value = _written(value)
            elif name not in known:
                raise ConfigError(f"flag {name}: unknown setting{suggest(name, [*known])}")
            layer[name] = Given(value, "flag")
    return layer


def _from_file(known: Collection[str], file: Path | None, problems: list[str]) -> Layer:
    layer: Layer = {}
    if file is None:
        return layer
    origin = f"file {file}"
    for table, content in _document(file).items():
        with noted(problems):
            place = f"{origin} [{table}]" if table in SECTIONS else origin
            for written, value in _flat(_table(table, content, origin)):
                with noted(problems):
                    name, value = _named(known, table, written, value, origin)
                    if name in layer:
                        raise ConfigError(
                            f"{layer[name].origin} and {place} both set {name}: keep one of them"
                        )
                    layer[name] = Given(value, place)
    return layer


def _document(file: Path) -> dict[str, object]:
    try:
        text = file.read_text("utf-8-sig")  # editors of Windows put a mark at the head
        return tomllib.loads(text)
    except OSError as error:
        raise ConfigError(
            f"file {file}: cannot be read: {error.strerror}; --config and HOLDFAST_CONFIG name the file"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"file {file}: is not valid TOML: {error}; save it as UTF-8") from error
    except ValueError as error:  # tomllib.TOMLDecodeError
        raise ConfigError(
            f"file {file}: is not valid TOML: {error}{_backslashes(text, str(error))}"
        ) from error
    except RecursionError:
        raise ConfigError(f"file {file}: is nested too deeply to be read") from None


def _backslashes(text: str, error: str) -> str:
    r"""Return the correction for a Windows path, in which TOML reads a backslash as an escape.

    >>> print(_backslashes('data_dir = "D:\\ada"', "Unescaped '\\\\' in a string"))
    ; in double quotes a backslash begins an escape: write 'D:\ada' in single quotes
    >>> _backslashes("web_port = ", "Invalid value")
    ''
    """
    found = re.search(r'"([^"\n]*\\[^"\n]*)"', text)
    if found is None or not ("escape" in error.lower() or "hex value" in error):
        return ""
    return f"; in double quotes a backslash begins an escape: write '{found[1]:.100}' in single quotes"


def _table(table: str, content: object, origin: str) -> dict[str, object]:
    """Return the content of a table that the file may contain."""
    tables = ["holdfast", *SECTIONS, "kafka"]
    if table not in tables:
        raise ConfigError(
            f"{origin}: unknown table or key {table}{suggest(table, tables)}; settings live in [holdfast], "
            f"or in a section of theirs ({', '.join(SECTIONS)}), Kafka's own in [kafka]"
        )
    if not isinstance(content, dict):
        raise ConfigError(f"{origin}: {table} must be a table: write [{table}]")
    return content


def _named(
    known: Collection[str], table: str, written: str, value: object, origin: str
) -> tuple[str, object]:
    """Return the full name of the setting that is *written* in *table*, and its value."""
    if table == "kafka":
        return _kafka(written, value, f"{origin} [kafka]")
    if table == "spark" and "." in written:
        return SPARK + written.removeprefix(SPARK), _written(value)
    prefix = SECTIONS.get(table, "")
    if prefix + written in known:
        return prefix + written, value
    names = [each.removeprefix(prefix) for each in known if each.startswith(prefix)]
    hint = suggest(written, names) or ("; it belongs in [holdfast]" if written in known else "")
    raise ConfigError(f"{origin}: unknown setting {written} in [{table}]{hint}")


def _flat(table: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield dotted names: `sasl.username = "x"` without quotes is a nested table to TOML, and one property to
    everyone else.
    """
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _from_env(spelled: Mapping[str, str], env: Mapping[str, str], problems: list[str]) -> Layer:
    plain = env.get("KAFKA_BOOTSTRAP_SERVERS")
    layer = (
        {f"{KAFKA}bootstrap.servers": Given(plain, "environment KAFKA_BOOTSTRAP_SERVERS")} if plain else {}
    )
    for variable, text in sorted(env.items()):
        if (
            not variable.startswith(ENV_PREFIX)
            or variable in NOT_SETTINGS
            or variable.startswith(NOT_SETTINGS_PREFIXES)
            or not text
        ):
            continue  # an empty variable is how a compose file says "not set"
        with noted(problems):
            name, value = _from_variable(spelled, env, variable)
            found = _spark_conf(value, variable) if name == SPARK else {name: value}
            layer |= {each: Given(text, f"environment {variable}") for each, text in found.items()}
    return layer


def _from_variable(spelled: Mapping[str, str], env: Mapping[str, str], variable: str) -> tuple[str, str]:
    """Return which setting a variable sets, and to what: its text, or that of the file which it names."""
    origin, text = f"environment {variable}", env[variable]
    name, direct = spelled.get(variable), variable
    if name is None and variable.endswith("_FILE"):
        direct = variable.removesuffix("_FILE")
        name = spelled.get(direct)
    if name is None:
        raise ConfigError(f"{origin}: unknown setting{suggest(variable, [*spelled])}")
    if direct != variable:
        if env.get(direct):
            raise ConfigError(f"{origin}: {direct} is set as well; keep one of them")
        text = _secret(Path(text), origin)
    return _kafka(name.removeprefix(KAFKA), text, origin) if name.startswith(KAFKA) else (name, text)


def _spark_conf(text: str, variable: str) -> dict[str, str]:
    """Read Spark's properties out of one variable.

    >>> _spark_conf("spark.executor.memory=2g; spark.sql.shuffle.partitions=64", "X")
    {'spark.executor.memory': '2g', 'spark.sql.shuffle.partitions': '64'}
    """
    pairs = [each.strip().partition("=") for each in text.split(";") if each.strip()]
    for name, sign, _ in pairs:
        if not name.startswith(SPARK) or not sign:
            raise ConfigError(
                f"environment {variable}: write spark.NAME=VALUE, several with semicolons between; not"
                f" {name!r}"
            )
    return {name.strip(): value.strip() for name, _, value in pairs}


def _written(value: object) -> str:
    """Return a property of Spark as Spark writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _secret(path: Path, origin: str) -> str:
    try:
        text = path.read_text("utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"{origin}: cannot read {path}: {why}; name a file that holds the value, which this account may"
            " read"
        ) from error
    if not text:
        raise ConfigError(f"{origin}: {path} is empty")
    return text


def _kafka(name: str, value: object, place: str) -> tuple[str, str]:
    name = check_name(name, place)
    return f"{KAFKA}{name}", check_value(name, value, place)


def convert(name: str, given: Given, wanted: Any, *, secret: bool) -> Any:
    """Return the value in the type the setting has; text from flags and environment is read as that type."""
    value, options = given.value, get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    if value == "" and NoneType in options:
        return None
    try:
        if name.endswith("_bytes") and isinstance(value, str) and (size := _SIZE.fullmatch(value)):
            value = int(size[1]) * _UNITS[(size[2] or "").upper()]
        return msgspec.convert(value, wanted, strict=False, dec_hook=_hook)
    except (msgspec.ValidationError, ValueError) as error:
        shown = "the value given" if secret else repr(given.value)
        raise ConfigError(f"{given.origin}: {name} cannot be {shown}: {error}") from error


def _expanded(path: Path) -> Path:
    """Return *path* with its ~ replaced by the home folder; ValueError if that folder is unknown."""
    try:
        return path.expanduser()
    except RuntimeError:
        raise ValueError(f"the home folder {path.parts[0]} is not known, write the whole path") from None


def _hook(wanted: type, value: object) -> object:
    if wanted is Path and isinstance(value, str) and value:
        if not value.isprintable():
            raise ValueError(
                "it holds a character that cannot be printed: in double quotes a backslash begins an escape,"
                " so write it in single quotes"
            )
        return _expanded(Path(value))
    raise ValueError("Expected a path")

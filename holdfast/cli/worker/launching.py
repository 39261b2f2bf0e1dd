"""The start of a worker process: its arguments, and the settings of this command line as variables."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.config import Settings
from holdfast.config.kafka_properties import env_names
from holdfast.config.sources import (
    ENV_CONFIG,
    ENV_KAFKA_PREFIX,
    ENV_PREFIX,
    ENV_SPARK_CONF,
    KAFKA,
    SPARK,
)
from holdfast.errors import ConfigError
from holdfast.web.listening import require_free

LAST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One worker process: *name* for people, its command line, and its variables in addition to the caller's
    own.
    """

    name: str
    arguments: tuple[str, ...]
    variables: Mapping[str, str]


def launches(
    settings: Settings,
    flags: Mapping[str, object],
    *,
    application: str | None,
    level: str,
    processes: int = 1,
    file: Path | None = None,
) -> list[Launch]:
    """Return the workers to start. *flags* are the settings of the command line, which *settings* hold too.

    Raises ConfigError if several workers would be indistinguishable.
    """
    own = (
        [{}] if processes == 1 else [_own_settings(settings, index, processes) for index in range(processes)]
    )
    config = {ENV_CONFIG: str(file.absolute())} if file else dict[str, str]()
    return [
        Launch(
            name=f"worker.{number}",
            arguments=_arguments(application, [*flags, *mine], level),
            variables=config | variables({**flags, **mine}),
        )
        for number, mine in enumerate(own, 1)
    ]


def require_ports(settings: Settings, processes: int) -> None:
    """Raise ConfigError where one of several workers could not listen: it would be started again and again
    for nothing.
    """
    for index in range(processes):
        port = settings.web_port + index
        try:
            require_free(settings.web_bind, port)
        except OSError as error:
            raise ConfigError(
                f"worker.{index + 1} cannot listen on {settings.web_bind} port {port}: {error.strerror}; set"
                " web_port (`holdfast worker --port`) and web_bind to a free place"
            ) from error


def variables(flags: Mapping[str, object]) -> dict[str, str]:
    """Return settings as the environment spells them.

    >>> variables({"web_port": 7000, "kafka.sasl.username": "anna", "spark.ui.enabled": "false"})
    {'HOLDFAST_WEB_PORT': '7000', 'HOLDFAST_KAFKA__SASL_USERNAME': 'anna', 'HOLDFAST_SPARK_CONF': 'spark.ui.enabled=false'}
    """  # noqa: E501
    spelled = {f"{KAFKA}{prop}": f"{ENV_KAFKA_PREFIX}{name}" for name, prop in env_names().items()}
    spark = [f"{name}={value}" for name, value in flags.items() if name.startswith(SPARK)]
    found = {
        spelled.get(name, f"{ENV_PREFIX}{name.upper()}"): str(value)
        for name, value in flags.items()
        if not name.startswith(SPARK)
    }
    return found | ({ENV_SPARK_CONF: ";".join(spark)} if spark else {})


def _own_settings(settings: Settings, index: int, processes: int) -> dict[str, object]:
    """Return the settings that only worker *index* of several workers has."""
    if settings.web_url is not None:
        raise ConfigError(
            f"{settings.place('web_url')} is one URL, and each of {processes} workers needs its own: leave it"
            " unset, or start one process"
        )
    if (port := settings.web_port + index) > LAST_PORT:
        raise ConfigError(
            f"web_port {settings.web_port} leaves no ports for {processes} workers: the last is {LAST_PORT}"
        )
    named = {} if settings.instance_id is None else {"instance_id": f"{settings.instance_id}.{index + 1}"}
    return {"web_port": port, "data_dir": settings.data_dir / f"worker.{index + 1}", **named}


def _arguments(application: str | None, given: Sequence[str], level: str) -> tuple[str, ...]:
    loop = () if sys.platform == "win32" else ("--loop", "uvloop")
    module = ("-P", "-m", "holdfast.cli.worker")
    return (
        sys.executable,
        *module,
        application or "",
        ",".join(dict.fromkeys(given)),
        *loop,
        "worker",
        "-l",
        level,
    )

"""Which engine a command takes, and how Spark is started."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.config import Settings
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.pipeline.spark.session import SparkOptions

MasterOption = Annotated[
    str | None,
    typer.Option(
        "--master", help="Spark master; local[*] takes every core of this machine. Default: spark_master."
    ),
]
MemoryOption = Annotated[
    str | None, typer.Option("--memory", help="Heap of Spark's driver. Default: spark_memory.")
]
ConfOption = Annotated[
    list[str] | None,
    typer.Option(
        "--conf",
        metavar="NAME=VALUE",
        help="A property of Spark; may be repeated. Also in [spark] and HOLDFAST_SPARK_CONF.",
    ),
]


class EngineName(StrEnum):
    """What `--engine` offers."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help="local: this process, no JVM. spark: one task per partition. auto: Spark where it is done first.",
    ),
]


def spark_options(
    settings: Settings, master: str | None, memory: str | None, conf: list[str] | None, *, quick: bool = False
) -> SparkOptions:
    """Return how to start Spark: as the options say, and where they do not, the settings."""
    from holdfast.pipeline.spark.session import SparkOptions

    return SparkOptions(
        master=master or settings.spark_master,
        memory=memory or settings.spark_memory,
        conf={**settings.spark_conf, **assignments(conf)},
        quick=quick,
    )


def assignments(given: list[str] | None) -> dict[str, str]:
    """Read `--conf NAME=VALUE` options."""
    pairs = [each.partition("=") for each in given or []]
    for name, sign, _ in pairs:
        if not sign or not name:
            raise ConfigError(f"--conf {name}: write NAME=VALUE, for example --conf spark.executor.memory=2g")
    return {name: value for name, _, value in pairs}

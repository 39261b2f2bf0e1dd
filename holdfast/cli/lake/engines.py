"""The engine of a command, and the start of Spark."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from holdfast.cli.options.context import settings_of
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
    """The choices of `--engine`."""

    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


EngineOption = Annotated[
    EngineName,
    typer.Option(
        "--engine",
        help=(
            "local: this process, no JVM. spark: one task per partition. auto: whichever is likely to finish"
            " first."
        ),
    ),
]

StateMemoryOption = Annotated[
    int,
    typer.Option(
        "--state-memory-mb",
        min=1,
        help=(
            "About how much memory the rows of a partition may take, and in verify what is compared; more"
            " goes to a temporary file."
        ),
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
        executors_timeout_s=settings.spark_executors_timeout_s,
    )


def assignments(given: list[str] | None) -> dict[str, str]:
    """Read `--conf NAME=VALUE` options."""
    pairs = [each.partition("=") for each in given or []]
    for name, sign, _ in pairs:
        if not sign or not name:
            raise ConfigError(f"--conf {name}: write NAME=VALUE, for example --conf spark.executor.memory=2g")
    return {name: value for name, _, value in pairs}


def takes_spark(*, quick: bool = False) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that gives a command the options of Spark: its parameter *spark* gets the start
    options, from these and the settings.
    """
    options = {"master": MasterOption, "memory": MemoryOption, "conf": ConfOption}

    def given(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(context: typer.Context, **told: Any) -> None:
            master, memory, conf = (told.pop(name) for name in options)
            spark = spark_options(settings_of(context), master, memory, conf, quick=quick)
            command(context, spark=spark, **told)

        # Typer reads signatures as they are: names imported only for type checkers must not occur there.
        hints = get_type_hints(command, localns={"SparkOptions": Any}, include_extras=True)
        kept = [
            each.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name])
            for name, each in signature(command).parameters.items()
            if name != "spark"
        ]
        more = [
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in options.items()
        ]
        run.__signature__ = Signature([*kept, *more])  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in (*kept, *more)}
        return run

    return given

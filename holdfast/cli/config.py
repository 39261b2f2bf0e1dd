"""`holdfast config`: the effective settings, secrets masked, and the source of each."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Annotated

import typer

from holdfast.cli.options.context import output_of, settings_of
from holdfast.cli.output import note, show
from holdfast.config import Settings
from holdfast.errors import ConfigError

logger = logging.getLogger(__name__)
app = typer.Typer(rich_markup_mode=None, add_completion=False)


@app.command(
    help=(
        "Print the effective settings and where each comes from: a flag, a variable, a file or the default."
        " Secrets are masked."
    )
)
def config(
    context: typer.Context,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also let librdkafka and Python's TLS read the Kafka properties; connects to nothing.",
        ),
    ] = False,
) -> None:
    settings = settings_of(context)
    show([asdict(row) for row in settings.describe()], ("name", "value", "origin"), output_of(context))
    if check:
        check_clients(settings)
        note("settings and Kafka properties are accepted by every client")


def check_clients(settings: Settings) -> None:
    """Have every client read its configuration; ConfigError names what one of them refuses."""
    from confluent_kafka import KafkaException

    from holdfast.kafka.clients import make_member, make_writer

    nowhere = {"bootstrap.servers": ""}  # reads every property and connects to nothing
    try:
        make_writer({**settings.producer(), **nowhere}, logger=logger)
        make_member({**settings.consumer(), **nowhere, "group.id": settings.app}, logger=logger).close()
    except KafkaException as error:
        raise ConfigError(f"a Kafka property is refused by librdkafka: {error.args[0].str()}") from error
    settings.sasl()
    settings.ssl_context()

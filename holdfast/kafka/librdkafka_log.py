"""Quietens librdkafka's clients in an outage: their log lines go to DEBUG, and they reconnect soon."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any


class Quiet:
    """A logger for librdkafka's clients that writes at DEBUG what librdkafka calls an error; we report what
    it means once.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def log(self, level: int, text: str, *details: object) -> None:
        """Take one line, whatever its level."""
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(text, *details)


def impatient(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return *config* with a short wait between attempts to connect, unless it says otherwise.

    librdkafka's own grows to 10 s: three times as long as a member of a fast fleet may be without its broker.
    """
    return {"reconnect.backoff.max.ms": 500, **config}

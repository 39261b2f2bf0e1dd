"""All of holdfast's own processors: what its own application folds, as its settings say."""

from __future__ import annotations

from typing import Any

from holdfast.agents.services import bookkeeper, rationalizer
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor


def processors(settings: Settings) -> list[Processor[Any, Any]]:
    """Return the processors of claims and whatever else *settings* turn on."""
    return [*rationalizer.processors(settings), *bookkeeper.processors(settings)]

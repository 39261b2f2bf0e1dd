"""A plugin of pytest that replaces Faust's application by holdfast's, for Faust's own tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import faust
import pytest

from holdfast.agents import app as ours
from holdfast.config import Settings

FOLDER = Path(tempfile.gettempdir()) / "holdfast-faust-suite"
PARTS = ("TableManager", "Stream", "Table", "LeaderAssignor", "PartitionAssignor")
"""The classes that an application of `create_app` has of its own; all else is as each test says."""


class MovedIn(ours.App):
    """Holdfast's application without processors, made as Faust's is."""

    def __init__(self, id: str, *args: Any, **options: Any) -> None:
        self.settings, self.processors, self.bound = Settings(app="suite", data_dir=FOLDER), {}, ""
        governed = ours.governed(self.settings)
        super().__init__(id, *args, **{**{part: governed[part] for part in PARTS}, **options})


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Begin: before Faust's tests import anything, and not when ours are collected, which imports this
    too.
    """
    faust.App = faust.app.App = MovedIn  # type: ignore[misc]

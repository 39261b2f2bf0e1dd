"""Fixtures of the chaos tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.config import Settings
from holdfast.dev.fixtures import SessionBroker
from tests.support.harness import Application, running
from tests.support.joining_app import JoinApplication

LINGER_MS = Settings(app="any").linger_ms

MakeApplication = Callable[..., Application]
MakeJoin = Callable[..., JoinApplication]


@pytest.fixture
def application(
    request: pytest.FixtureRequest, broker: SessionBroker, tmp_path: Path
) -> Iterator[MakeApplication]:
    """Give a maker of applications with topics of their own on the session's broker; all they started is
    gone after the test. In a long run they gather slow streams of records as the product does.
    """
    usual: dict[str, float] = {"linger_ms": LINGER_MS} if request.node.get_closest_marker("slow") else {}
    with ExitStack() as stack:

        def make(**settings: str | float) -> Application:
            made = Application(broker, tmp_path, **{**usual, **settings})  # type: ignore[arg-type]
            return stack.enter_context(running(made)).create_topics()

        yield make


@pytest.fixture
def join(broker: SessionBroker, tmp_path: Path) -> Iterator[MakeJoin]:
    """Give a maker of applications of two sources; all they started is gone after the test."""
    with ExitStack() as stack:

        def make(**settings: str | float) -> JoinApplication:
            made = JoinApplication(broker, tmp_path, **settings)  # type: ignore[arg-type]
            stack.enter_context(running(made))
            return made.create_topics()

        yield make

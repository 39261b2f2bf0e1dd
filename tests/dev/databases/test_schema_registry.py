"""The schema registry's archive of classes is never in the way of a start."""

from __future__ import annotations

import logging

import pytest

from holdfast.dev.databases import schema_registry
from holdfast.errors import DevBrokerError


def test_an_archive_that_cannot_be_made_is_reported_and_stops_no_registry(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise DevBrokerError("schema-registry did not answer within 90 s")

    monkeypatch.setattr(schema_registry, "shared_classes", refuse)
    with caplog.at_level(logging.WARNING, logger=schema_registry.__name__):
        assert schema_registry._sharing() == ()
    (told,) = caplog.messages
    assert "no archive of their classes was made: schema-registry did not answer" in told

"""Questions to coordinators of which some do not answer."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.kafka import coordinator_admin
from holdfast.kafka.coordinator_admin import LIMIT_ASKED, CoordinatorAdmin

NOWHERE = {"bootstrap.servers": "127.0.0.1:1"}


class Coordinators:
    """Answers of some; the groups of *silent* ones get none before they were asked *until* times."""

    def __init__(self, silent: set[str], until: int = 1_000) -> None:
        self._silent, self._until = silent, until
        self.asked: list[str] = []

    def __call__(self, _: AdminClient, groups: list[str]) -> Mapping[str, Future[str]]:
        [group] = groups  # for it would get no answer before all of them have one
        self.asked.append(group)
        future = Future[str]()
        if group not in self._silent or self.asked.count(group) >= self._until:
            future.set_result(f"of {group}")
        return {group: future}


@pytest.fixture
def admin() -> CoordinatorAdmin:
    return CoordinatorAdmin(NOWHERE, logging.getLogger(__name__))


@pytest.mark.parametrize("silent", ["a", "b", "c"])
def test_answers_are_given_though_a_coordinator_is_silent(admin: CoordinatorAdmin, silent: str) -> None:
    found = admin.ask(Coordinators({silent}), ["a", "b", "c"], 0.2)
    assert isinstance(found.pop(silent), FutureTimeoutError)
    assert found == {each: f"of {each}" for each in "abc" if each != silent}


def test_only_silent_ones_are_asked_again(admin: CoordinatorAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_admin, "ATTEMPT_S", 0.05)
    coordinators = Coordinators({"a", "c"}, until=3)
    assert admin.ask(coordinators, ["a", "b", "c"], 30.0) == {each: f"of {each}" for each in "abc"}
    assert coordinators.asked == [*"abc", *"ac", *"ac"]


def test_a_silent_coordinator_of_one_lot_leaves_time_for_the_others(admin: CoordinatorAdmin) -> None:
    groups = [f"g{number}" for number in range(3 * LIMIT_ASKED)]
    coordinators = Coordinators({"g0", f"g{LIMIT_ASKED}"})
    found = admin.ask(coordinators, groups, 0.3)
    silent = {group for group, answer in found.items() if isinstance(answer, FutureTimeoutError)}
    assert (silent, len(found)) == ({"g0", f"g{LIMIT_ASKED}"}, len(groups))


def test_a_refusal_is_returned_rather_than_a_last_attempt_without_an_answer(admin: CoordinatorAdmin) -> None:
    refused = KafkaException(KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS))

    def question(_: AdminClient, groups: list[str]) -> Mapping[str, Future[str]]:
        future = Future[str]()
        if not asked:
            future.set_exception(refused)
        asked.extend(groups)
        return dict.fromkeys(groups, future)

    asked = list[str]()
    assert admin.ask(question, ["a"], 0.2) == {"a": refused}
    assert len(asked) > 1


def test_without_an_answer_of_the_brokers_no_coordinator_is_named(
    admin: CoordinatorAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_admin, "NAMING_S", 0.05)
    assert admin.coordinators(["a"]) == {}

"""The application that `-A` finds, and the settings that count."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.options.application import load_application
from holdfast.clients.topics.grants import worker_grants
from holdfast.clients.topics.types import FaustTopics
from holdfast.config import Settings, load_settings
from holdfast.errors import ConfigError

MODULE = """
import msgspec
from holdfast.agents.app import create_app
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor


class Row(msgspec.Struct, frozen=True):
    seen: int = 0


def fold(rows, event, at_ms):
    pass


totals = Processor(name="totals", source="orders", decode=bytes, fold=fold, row=Row)
returns = Processor(name="returns", source="returned", decode=bytes, fold=fold, row=Row)
doubled = [totals, totals]
both = [totals, returns]
number = 7
mixed = [totals, 7]
empty = []


def made(settings):
    return [Processor(name="made", source=settings.coordination_topic, decode=bytes, fold=fold, row=Row)]


def build():
    return create_app(both, Settings(app="shop", web_port=7001, kafka={"client.id": "own", "debug": "broker"}))
"""  # noqa: E501


AGENT = """
app = build()

@app.agent(app.topic("mails", "letters", value_type=bytes))
async def send(stream):
    async for _ in stream:
        pass

@app.agent()
async def own(stream):
    async for _ in stream:
        pass

totted = app.Table("totted", default=int)

@app.timer(60, on_leader=True)
async def lead():
    pass
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a folder with a user's module, as the current one."""
    (tmp_path / "shop.py").write_text(MODULE + "processors = made\n")
    (tmp_path / "shop_app.py").write_text(MODULE + "app = build()\n")
    (tmp_path / "shop_agents.py").write_text(MODULE + AGENT)
    (tmp_path / "shop_bare.py").write_text("x = 1\n")
    (tmp_path / "shop_broken.py").write_text("import surely_not_installed\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    for name in ("shop", "shop_app", "shop_agents", "shop_bare", "shop_broken"):
        sys.modules.pop(name, None)


def names(spec: str | None, settings: Settings) -> list[str]:
    return [processor.name for processor in load_application(spec, settings).processors]


def test_a_list_a_function_and_the_default_name_are_found(shop: Path) -> None:
    settings = Settings()
    assert names("shop:both", settings) == ["totals", "returns"]
    assert names("shop:made", settings) == ["made"]
    assert names("shop", settings) == ["made"], "`processors` when there is no `app`"


def test_the_topics_of_ordinary_agents_are_known_too(shop: Path) -> None:
    assert load_application("shop_agents", Settings()).read_topics == [
        "letters",
        "mails",
        "orders",
        "returned",
        "shop-shop_agents.own",
    ]
    assert load_application("shop:both", Settings()).read_topics == ["orders", "returned"]


def test_the_topics_that_faust_makes_for_agents_are_known(shop: Path) -> None:
    faust = load_application("shop_agents", Settings(app="shop")).faust
    assert faust == FaustTopics(
        read=("letters", "mails", "shop-shop_agents.own"),
        kept=("shop-shop_agents.own", "shop-totted-changelog"),
        begin=("shop-shop_agents.own-", "shop_agents.send-"),
        leader=("shop-__assignor-__leader",),
    )
    grants = worker_grants(Settings(app="shop"), [], faust)
    told = {(each.name, str(each.operation), str(each.pattern)) for each in grants}
    assert ("mails", "Read", "literal") in told
    assert ("mails", "Write", "literal") not in told
    assert {("shop-totted-changelog", each, "literal") for each in ("Create", "Read", "Write")} <= told
    assert ("shop-__assignor-__leader", "Read", "literal") in told
    assert ("shop-__assignor-__leader", "Write", "literal") not in told
    assert {("shop_agents.send-", each, "prefixed") for each in ("Create", "Read", "Write")} <= told


def test_a_function_is_given_the_settings(shop: Path) -> None:
    (made,) = load_application("shop", Settings(coordination_topic="elsewhere")).processors
    assert made.source == "elsewhere"


def test_an_app_brings_its_processors_and_its_settings_where_nothing_else_was_said(shop: Path) -> None:
    said = load_settings(flags={"kafka.client.id": "flag"}, env={"HOLDFAST_WEB_PORT": "7000"}, file=None)
    application = load_application("shop_app", said)
    assert [processor.name for processor in application.processors] == ["totals", "returns"]
    assert application.settings.app == "shop"
    assert application.settings.web_port == 7000
    assert dict(application.settings.kafka) == {
        "bootstrap.servers": "127.0.0.1:9092",
        "client.id": "flag",
        "debug": "broker",
    }


def test_without_a_name_it_is_the_built_in_application() -> None:
    assert all(processor.source == "__marshal" for processor in load_application(None, Settings()).processors)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("nowhere", ["no module nowhere"]),
        ("shop.deeper", ["shop.deeper"]),
        ("", ["name a module"]),
        ("shop:botl", ["shop.py has no botl", "did you mean both"]),
        ("shop:number", ["found int instead of an app"]),
        ("shop:mixed", ["found list instead of an app"]),
        ("shop:empty", ["found list instead of an app"]),
        ("shop:doubled", ["two processors share a name"]),
        ("shop_bare", ["neither `app` nor `processors`"]),
    ],
)
def test_a_spec_that_names_no_application_is_refused_with_the_objects_found(
    shop: Path, spec: str, parts: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_application(spec, Settings())
    for part in parts:
        assert part in str(refused.value)


def test_a_package_that_the_users_module_needs_is_not_blamed_on_the_option(shop: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"shop_broken\.py:1: ModuleNotFoundError: No module named 'surely_not_installed'"
    ):
        load_application("shop_broken", Settings())


def test_a_folder_of_the_user_never_hides_an_installed_package(shop: Path) -> None:
    (shop / "msgspec.py").write_text("raise AssertionError('shadowed')\n")
    sys.modules.pop("shop", None)
    assert names("shop", Settings()) == ["made"]
    assert sys.path[-1] == str(shop)


def test_a_processor_is_found_by_name_or_its_neighbours_are(shop: Path) -> None:
    application = load_application("shop:both", Settings())
    assert application.processor("returns").source == "returned"
    with pytest.raises(ConfigError, match="no processor return; did you mean returns"):
        application.processor("return")

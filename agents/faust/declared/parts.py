"""Faust's own parts that an application takes in addition to its processors, and those that it refuses at
their declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import faust
from faust.assignor.leader_assignor import LeaderAssignor
from faust.streams import Stream
from faust.web.base import (
    DEBUG_BLUEPRINTS,
    DEFAULT_BLUEPRINTS,
    OPTIONAL_BLUEPRINTS,
    PRODUCTION_BLUEPRINTS,
)
from mode.supervisors import CrashingSupervisor

from holdfast.agents.faust.transport.conductor import takes_batches
from holdfast.clients.topics.types import FaustTopics
from holdfast.config import Settings
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError

OWN_PAGES = ("/tables", "/globals", "/health", "/metrics")


STOCK_PAGES = (*DEFAULT_BLUEPRINTS, *PRODUCTION_BLUEPRINTS, *DEBUG_BLUEPRINTS, *OPTIONAL_BLUEPRINTS)
"""Faust's own pages, which show its tables to anyone."""


class LeaderOnDemand(LeaderAssignor):
    """Elects a leader by a topic of its own, where a task, timer or crontab is the leader's."""

    app: Any

    async def on_start(self) -> None:
        if self.app.has_leader:
            await self._enable_leader_topic()


class DerivedStream(Stream[Any]):
    """A stream that notes the topics it goes through, so that they are there before anybody subscribes."""

    app: Any

    def _enable_passive(self, channel: Any, *, declare: bool = False) -> None:
        if declare:
            self.app.derived.append(channel)
        super()._enable_passive(channel, declare=declare)


class FaustParts(faust.App):
    """The declarations of a Faust application, as far as an application of `create_app` differs in them."""

    settings: Settings
    processors: dict[str, Processor[Any, Any]]

    def __init__(self, *args: Any, **options: Any) -> None:
        self.derived: list[Any] = []
        """Channels that streams go through."""
        self.has_leader = False
        super().__init__(*args, **options)

    # -- agents and streams

    def agent(self, channel: Any = None, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        """Declare an ordinary agent, which gets records one by one, of a processor's source too; ConfigError
        on an internal topic or a changelog of a processor.
        """
        self._refuse_internal(channel, "agent")
        return super().agent(channel, **options)

    actor = agent

    def stream(self, channel: Any, beacon: Any = None, **options: Any) -> Any:
        """Return a stream of *channel*; ConfigError on an internal topic or a changelog of a processor."""
        self._refuse_internal(channel, "stream")
        return super().stream(channel, beacon, **options)

    def _refuse_internal(self, channel: Any, what: str) -> None:
        if takes_batches(channel):
            return  # a processor's own way in
        names = (channel,) if isinstance(channel, str) else getattr(channel, "topics", None) or ()
        pattern = getattr(channel, "pattern", None)
        for processor in self.processors.values():
            own = (processor.changelog(self.settings.app), *map(str, processor.internal))
            for topic in own:
                if topic in names or (pattern is not None and pattern.search(topic)):
                    raise ConfigError(
                        f"{what} on topic {topic}: it is processor {processor.name}'s own, whose records go"
                        f" as soon as processors have them in their state; have a fold emit what the {what}"
                        " needs to a topic of its own"
                    )

    async def _on_agent_error(self, agent: Any, exc: BaseException) -> None:
        await super()._on_agent_error(agent, exc)
        if issubclass(agent._get_supervisor_strategy(), CrashingSupervisor):
            # Stock counts the record that an agent failed at as done, and would commit it while the worker
            # ends.
            self.consumer.commits_no_more()  # type: ignore[attr-defined]  # ours

    def faust_topics(self) -> FaustTopics:
        """Return the topics of the parts declared in addition to the processors."""
        agents = [each for each in self.agents.values() if not takes_batches(each.channel)]
        own = {processor.table for processor in self.processors.values()}
        kept = {self.tables[name]._changelog_topic_name() for name in self.tables if name not in own}
        made = [each for each in agents if getattr(each.channel, "has_prefix", False)]  # a topic of its own
        kept |= {topic for each in made for topic in each.get_topic_names()}
        begin = {
            f"{name}-"
            for each in agents
            for name in (each.get_topic_names() if each in made else [each.name])
        }
        if agents and self.conf.reply_create_topic:
            begin.add(self.conf.reply_to_prefix)
        read = {topic for each in agents for topic in each.get_topic_names()}
        leader = (f"{self.conf.id}-__assignor-__leader",) if self.has_leader else ()
        return FaustTopics(read=_sorted(read), kept=_sorted(kept), begin=_sorted(begin), leader=leader)

    # -- tasks of the leader

    def task(self, fun: Any = None, *, on_leader: bool = False, traced: bool = True) -> Any:  # type: ignore[override]
        """Declare a task; with *on_leader* one worker of all runs it."""
        self.has_leader |= on_leader
        return super().task(fun, on_leader=on_leader, traced=traced)

    def timer(self, interval: Any, on_leader: bool = False, **options: Any) -> Callable[[Any], Any]:  # type: ignore[override]
        """Declare a timer; with *on_leader* one worker of all runs it."""
        self.has_leader |= on_leader
        decorator: Callable[[Any], Any] = super().timer(interval, on_leader, **options)
        return decorator

    def crontab(self, cron_format: str, *, on_leader: bool = False, **options: Any) -> Callable[[Any], Any]:  # type: ignore[override]
        """Declare a crontab; with *on_leader* one worker of all runs it."""
        self.has_leader |= on_leader
        decorator: Callable[[Any], Any] = super().crontab(cron_format, on_leader=on_leader, **options)
        return decorator

    # -- pages

    def page(self, path: str, **options: Any) -> Callable[[Any], Any]:
        """Declare a page of the worker's web port; ConfigError where holdfast's own are."""
        if any(path == own or path.startswith(own + "/") for own in OWN_PAGES):
            raise ConfigError(
                f"page {path}: the worker's own pages are {', '.join(OWN_PAGES)} and what is below; give the"
                " page another path"
            )
        decorator: Callable[[Any], Any] = super().page(path, **options)
        return decorator

    def page_resources(self) -> list[Any]:
        """Return the pages of agents and blueprints, as aiohttp's resources."""
        web: Any = self.web
        web.blueprints._enabled = [each for each in web.blueprints._enabled if each not in STOCK_PAGES]
        web.init_server()
        return list(web.web_app.router.resources())


def _sorted(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(names))

"""The log of commands to the harvesters of one outbox: every process reads all of it, and answers for the
shards that it leads.

A command gets one answer from each shard, also when leaders change in the meantime. The shard's leader at
that time answers. If it is killed before, the next leader answers, as long as a caller waits. Before
answering, a harvester reads the answers to their end, having led the shard before that. So it knows the last
answer of its predecessor, which can give no other, since its lease is over. The answer of a process that was
frozen between that look and its answer comes second, and second answers do not count.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from math import inf
from typing import Any, Protocol

import msgspec
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from holdfast.clock import Clock, system_clock
from holdfast.errors import BrokerError, HoldfastError
from holdfast.kafka.clients import make_writer
from holdfast.kafka.codes import is_of_group
from holdfast.kafka.reading.log_reader import LogReader
from holdfast.outbox.commands import (
    END_S,
    POLL_S,
    Command,
    CommandReply,
    Verb,
    end_of,
    read_answer,
    read_command,
    reader_of_commands,
)
from holdfast.outbox.settings import HarvestSettings

logger = logging.getLogger(__name__)

SOON_S = 0.02
GRACE_S = 2.0
"""A pause is answered once nothing is on its way any more, a new leader's commands once its term has
begun; or after this.
"""
HISTORY_MS = 700_000
"""The age of answers that are read at the start: no caller waits longer for one."""
LIMIT_REMEMBERED = 4_096


class CommandHandler(Protocol):
    """The harvester, as its command log uses it."""

    def obey(self, command: Command) -> None:
        """Carry out a command."""

    def caught_up(self) -> None:
        """All commands from before this process joined have been read."""

    def leads(self, shard: int) -> bool:
        """Return whether this process leads *shard* right now."""

    def is_settled(self, shard: int, verb: Verb) -> bool:
        """Return whether what it says of *shard* now is worth saying."""

    def answer(self, command: Command, shard: int) -> CommandReply:
        """Return the answer of *shard*."""

    def failed(self, error: HoldfastError) -> None:
        """The command log has ended with *error*."""


class OpenCommands:
    """The commands that are open, and which shards have answered them; a fold of both topics, in any order
    of the two.
    """

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._open: OrderedDict[str, tuple[Command, int]] = OrderedDict()
        self._answered: OrderedDict[str, set[int]] = OrderedDict()

    def opened(self, command: Command, ends_ms: int) -> None:
        """Note a command whose answers are waited for until *ends_ms*; the oldest is forgotten when there
        are very many.
        """
        self._open[command.id] = command, ends_ms
        while len(self._open) > LIMIT_REMEMBERED:
            self._open.popitem(last=False)

    def answered(self, answer_id: str, shard: int) -> None:
        """Note that a shard has answered."""
        self._answered.setdefault(answer_id, set()).add(shard)
        while len(self._answered) > 2 * LIMIT_REMEMBERED:
            self._answered.popitem(last=False)

    def not_answered(self, answer_id: str, shard: int) -> None:
        """Note that an answer did not get through."""
        self._answered.get(answer_id, set()).discard(shard)

    def owed(self, now_ms: int) -> Iterator[tuple[Command, int]]:
        """Yield (command, shard) for each answer that a caller may still wait for, in the order of the
        commands.
        """
        for command, ends_ms in list(self._open.values()):
            if ends_ms < now_ms:
                del self._open[command.id]
                continue
            answered = self._answered.get(command.id, set())
            yield from ((command, shard) for shard in range(self._shards) if shard not in answered)


class CommandLog(threading.Thread):
    """Reads commands, calls *act* for each (from this thread; it returns when that is done), and answers
    for *handler*.
    """

    def __init__(
        self,
        settings: HarvestSettings,
        handler: CommandHandler,
        act: Callable[[Command], None],
        clock: Clock = system_clock,
    ) -> None:
        super().__init__(name="holdfast-outbox-commands", daemon=True)
        self._settings, self._handler, self._act, self._clock = settings, handler, act, clock
        self._open = OpenCommands(settings.shards)
        self._ended = threading.Event()
        self._reader: LogReader | None = None
        self._producer: Any = None
        self._history: tuple[int, list[Command]] = 0, []
        """The offset at which new commands begin, and the commands before."""
        self._waiting_s: dict[tuple[str, int], float] = {}
        """Since when an answer waits for its shard to settle."""

    def open(self) -> None:
        """Connect; raises BrokerError when the cluster cannot be asked."""
        settings = self._settings
        commands, answers = settings.commands_topic, settings.answers_topic
        self._reader = reader = reader_of_commands(settings, self._warn)
        try:
            end = end_of(reader.consumer, answers, self._clock)
            since = TopicPartition(answers, 0, self._clock.now_ms() - HISTORY_MS)
            (found,) = reader.consumer.offsets_for_times([since], timeout=END_S)
            begin = found.offset if found.error is None and found.offset >= 0 else end
            self._history = end_of(reader.consumer, commands, self._clock), []
            reader.assign({(commands, 0): 0, (answers, 0): begin})
        except KafkaException as error:
            reader.close()
            raise BrokerError(
                f"topic {commands}: {error.args[0].str()}; check that the broker is reachable"
            ) from error
        self._producer = make_writer(
            {**settings.kafka.producer(), "message.timeout.ms": 10_000, "enable.idempotence": True}
        )
        self.start()

    def close(self, timeout_s: float) -> None:
        """End the thread."""
        self._ended.set()
        if self.is_alive():
            self.join(timeout_s)

    @property
    def ended(self) -> bool:
        """Return whether the log has ended."""
        return self._ended.is_set()

    def run(self) -> None:
        assert self._reader is not None
        try:
            if self._read_to(self._settings.commands_topic, self._history[0], None):
                self._relive()
                self._handler.caught_up()
            wait_s = POLL_S
            while not self._ended.is_set():
                self._take(self._reader.read(wait_s))
                wait_s = SOON_S if self._answer_all() else POLL_S
        except Exception as error:
            if (
                not self._ended.is_set()
            ):  # a harvester that is deaf would publish through a pause, or never begin
                logger.exception(
                    "outbox %(outbox)s: its commands are no longer read", {"outbox": self._settings.name}
                )
                self._handler.failed(
                    HoldfastError(f"commands of outbox {self._settings.name} cannot be followed: {error!r}")
                )
        finally:
            self._reader.close()
            self._producer.flush(POLL_S)
            self._producer = None  # it has no end but this that keeps a deadline

    # -- hearing

    def _read_to(self, topic: str, end: int, timeout_s: float | None) -> bool:
        """Read on until *topic* has been read to *end*; return whether it has."""
        assert self._reader is not None
        until_s = inf if timeout_s is None else self._clock.monotonic_s() + timeout_s
        while not self._reader.has_read({(topic, 0): end}):
            if self._ended.is_set() or self._clock.monotonic_s() > until_s:
                return False
            self._take(self._reader.read(POLL_S))
        return True

    def _warn(self, error: KafkaError) -> None:
        if not is_of_group(error):  # the group is named, as a consumer must, and never joined
            logger.warning(
                "commands of outbox %(outbox)s: %(error)s",
                {"outbox": self._settings.name, "error": error.str()},
            )

    def _take(self, messages: list[Message]) -> None:
        for message in messages:
            self._received(message)

    def _received(self, message: Message) -> None:
        topic, offset, value = message.topic() or "", message.offset() or 0, message.value()
        if value is None:
            return
        try:
            if topic == self._settings.commands_topic:
                self._command(read_command(value), offset)
            else:
                answer = read_answer(value)
                self._open.answered(answer.id, answer.shard)
        except msgspec.DecodeError as error:
            logger.warning(
                "outbox %(outbox)s: record %(offset)d of %(topic)s is not understood: %(error)s",
                {"outbox": self._settings.name, "offset": offset, "topic": topic, "error": error},
            )

    def _command(self, command: Command, offset: int) -> None:
        end, old = self._history
        # The caller may have another clock, so the wait for a command counts from when it is read.
        self._open.opened(
            command, (command.at_ms if offset < end else self._clock.now_ms()) + command.wait_ms
        )
        if offset < end:
            old.append(command)
            if len(old) > LIMIT_REMEMBERED:
                old[:] = self._of_effect(old)
        else:
            self._act(command)

    def _relive(self) -> None:
        """Carry out earlier commands that still hold: the last pause or resume, and those that a caller waits
        for.
        """
        for command in self._of_effect(self._history[1]):
            self._act(command)
        self._history[1].clear()

    def _of_effect(self, commands: list[Command]) -> list[Command]:
        lasting = [command for command in commands if command.verb in (Verb.PAUSE, Verb.RESUME)][-1:]
        now_ms = self._clock.now_ms()
        return [
            command for command in commands if command in lasting or command.at_ms + command.wait_ms >= now_ms
        ]

    # -- answering

    def _due(self) -> tuple[list[tuple[Command, int]], bool]:
        """Return the answers due now, and whether there are others that are not settled yet."""
        now_s, due, waiting_s = (
            self._clock.monotonic_s(),
            list[tuple[Command, int]](),
            dict[tuple[str, int], float](),
        )
        for command, shard in self._open.owed(self._clock.now_ms()):
            if self._handler.leads(shard):
                since_s = waiting_s[command.id, shard] = self._waiting_s.get((command.id, shard), now_s)
                if self._handler.is_settled(shard, command.verb) or now_s >= since_s + GRACE_S:
                    due.append((command, shard))
        self._waiting_s = waiting_s
        return due, len(due) < len(waiting_s)

    def _answer_all(self) -> bool:
        """Write the answers that are due; return whether to look again soon."""
        due, later = self._due()
        if not due:
            return later
        answers = self._settings.answers_topic
        assert self._reader is not None
        try:
            _, end = self._reader.consumer.get_watermark_offsets(TopicPartition(answers, 0), timeout=END_S)
        except KafkaException as error:
            logger.warning(
                "outbox %(outbox)s: cannot answer yet: %(error)s",
                {"outbox": self._settings.name, "error": error.args[0].str()},
            )
            return False
        if not self._read_to(answers, end, END_S):
            return False
        led = {(command.id, shard) for command, shard in due}
        for command, shard in self._due()[0]:
            if (command.id, shard) in led:  # led before the end was asked for, and leads still
                self._open.answered(command.id, shard)
                self._produce(self._handler.answer(command, shard))
        self._producer.flush(POLL_S)
        return later

    def _produce(self, answer: CommandReply) -> None:
        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                logger.warning(
                    "outbox %(outbox)s: an answer did not get through: %(error)s",
                    {"outbox": self._settings.name, "error": error.str()},
                )
                self._open.not_answered(answer.id, answer.shard)

        try:
            self._producer.produce(
                self._settings.answers_topic, msgspec.json.encode(answer), on_delivery=delivered
            )
        except BufferError:
            self._open.not_answered(answer.id, answer.shard)

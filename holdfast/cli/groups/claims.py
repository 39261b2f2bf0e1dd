"""`holdfast claims`: the owner of each partition, read from the workers' tables."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Annotated, Any

import typer

from holdfast.agents.services.rationalizer import CLAIMS
from holdfast.cli.command_group import CommandGroup
from holdfast.cli.groups.tails import without_records
from holdfast.cli.options.application import load_application
from holdfast.cli.options.asking import TIMEOUT_S, StaleOk, TimeoutOption, staleness
from holdfast.cli.options.context import LAST_PARTITION, globals_of, output_of
from holdfast.cli.output import Cell, Output, OutputRow, json_text, note, show, show_json, text, utc
from holdfast.cli.watching import WatchedLooks
from holdfast.clients.tables.answers import Answer, ReachedOffsets
from holdfast.clients.tables.blocking import BlockingTableClient
from holdfast.clients.topics.admin import Admin
from holdfast.clock import system_clock
from holdfast.config import Settings
from holdfast.core.claims.claim_keys import PAUSE_PREFIX, ClaimKey, claim_key, parse_claim_key, pause_key
from holdfast.core.claims.claim_rows import Claim, GuardedRow, Pause
from holdfast.core.claims.frames import Frame
from holdfast.core.claims.staleness import ClaimStatus, is_paused, skew_s, status
from holdfast.core.engine.declared.processor import Processor
from holdfast.errors import ConfigError

app = typer.Typer(cls=CommandGroup, no_args_is_help=True, rich_markup_mode=None, add_completion=False)

COLUMNS = (
    "group",
    "topic",
    "partition",
    "current_offset",
    "log_end_offset",
    "lag",
    "consumer_id",
    "client_id",
    "status",
    "owner_instance",
    "heartbeat_age",
)
FIELDS = (
    *COLUMNS[:-1],
    "owner_epoch",
    "heartbeat_age_s",
    "heartbeat_at_s",
    "released_at_s",
    "paused_until_s",
    "coordination_partition",
    "as_of_offset",
    "role",
)
"""The fields of every record in JSON; None where it is unknown."""

Wait = Annotated[
    bool,
    typer.Option(
        "--wait",
        help=(
            "Wait until the answer reflects every frame that is in the coordination topic now; fail after"
            " --timeout."
        ),
    ),
]
GroupOption = Annotated[str | None, typer.Option("--group", help="Only this group.")]
TopicOption = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]


class _ClaimViews:
    """The commands' queries: to the workers for claims, to the brokers for the ends of the topics."""

    def __init__(
        self, context: typer.Context, timeout_s: float, stale_ok: str | None, *, wait: bool = False
    ) -> None:
        chosen = globals_of(context)
        application = load_application(chosen.application, chosen.settings())
        self.settings: Settings = application.settings
        self.processor: Processor[Frame, GuardedRow] = application.processor(CLAIMS)
        self._timeout_s, self._staleness = timeout_s, staleness(stale_ok)
        self.tables = BlockingTableClient(self.settings, [self.processor])
        self._admin: Admin | None = None
        self._at_least = self._written() if wait else None

    def scan(self, prefix: str) -> Iterator[Answer[GuardedRow]]:
        return self.tables.scan(
            self.processor,
            prefix,
            timeout_s=self._timeout_s,
            max_staleness=self._staleness,
            at_least=self._at_least,
        )

    def get(self, key: str, partition: int | None = None) -> Answer[GuardedRow | None]:
        return self.tables.get(
            self.processor, key, partition=partition, timeout_s=self._timeout_s, max_staleness=self._staleness
        )

    def claims(self, group: str | None, topic: str | None) -> _Found:
        """Return the claims asked for and the pauses that concern them."""
        prefix = "" if group is None else f"{group}/" if topic is None else f"{group}/{topic}/"
        found = _Found({}, {}, system_clock.now_ms() // 1000, self.settings.claim_stale_after_s)
        for answer in self.scan(prefix):
            if answer.key.startswith(PAUSE_PREFIX):
                found.add_pause(answer)
            else:
                key = parse_claim_key(answer.key)
                if topic is None or key.topic == topic:
                    found.claims[key] = answer
        if group is not None:
            for answer in self.scan(pause_key(group)):
                if answer.key == pause_key(group):
                    found.add_pause(answer)
        return found

    def ends(self, keys: Iterable[ClaimKey]) -> Mapping[tuple[str, int], int]:
        """Return the log end offset of each claimed partition that exists."""
        wanted = {(key.topic, key.partition) for key in keys}
        exist = self._partitions({topic for topic, _ in wanted})
        return {place: end for place, (_, end) in self._asking.offsets(sorted(wanted & exist)).items()}

    def records(self, found: _Found) -> list[dict[str, Cell]]:
        """Return the records to show for *found*; after a position without lag there is nothing, or
        markers.
        """
        records = found.records(self.ends(found.claims))
        tails = [((str(each["topic"]), int(str(each["partition"]))), each) for each in records if each["lag"]]
        ends = [
            (place, int(str(each["current_offset"])), int(str(each["log_end_offset"])))
            for place, each in tails
        ]
        done = without_records(self.settings, ends, timeout_s=self._timeout_s)
        for place, each in tails:
            if (place, each["current_offset"]) in done:
                each["lag"] = 0
        return records

    @property
    def _asking(self) -> Admin:
        if self._admin is None:
            self._admin = Admin(self.settings, timeout_s=self._timeout_s)
        return self._admin

    def _partitions(self, topics: set[str]) -> set[tuple[str, int]]:
        found = self._asking.cluster(topics).topics
        return {
            (name, each.partition)
            for name, state in found.items()
            for each in state.partitions
            if each.leader is not None
        }

    def _written(self) -> ReachedOffsets:
        """Return the offset of the last frame of each partition of the coordination topic that has one."""
        topic = self.settings.coordination_topic
        ids = self._asking.topic_ids([topic], there_only=True).topics
        ends = self._asking.offsets(sorted(self._partitions({topic})))
        last = {partition: end - 1 for (_, partition), (begin, end) in ends.items() if begin < end}
        return ReachedOffsets(last, ids)


@dataclass(frozen=True, slots=True)
class _Found:
    claims: dict[ClaimKey, Answer[Any]]
    pauses: dict[str, Pause]
    now_s: int
    stale_after_s: int

    def add_pause(self, answer: Answer[Any]) -> None:
        """A pause is in every partition that has received it; the one that was appended last counts."""
        group, pause = answer.key.removeprefix(PAUSE_PREFIX), answer.value
        before = self.pauses.get(group)
        if before is None or pause.at_s >= before.at_s:
            self.pauses[group] = pause

    def paused_until_s(self, group: str) -> int | None:
        pause = self.pauses.get(group)
        return pause.expires_at_s if pause is not None and is_paused(pause, self.now_s) else None

    def records(self, ends: Mapping[tuple[str, int], int]) -> list[dict[str, Cell]]:
        """Return one record a claim in the order of group, topic and partition, then one for each paused
        group that holds none.
        """
        records = [
            _record(
                key, answer, self, ends.get((key.topic, key.partition)), self.paused_until_s(key.group_id)
            )
            for key, answer in sorted(self.claims.items())
        ]
        holding = {key.group_id for key in self.claims}
        for group in sorted(self.pauses.keys() - holding):
            if (until_s := self.paused_until_s(group)) is not None:
                records.append(
                    {**dict.fromkeys(FIELDS), "group": group, "status": "paused", "paused_until_s": until_s}
                )
        return records


def _record(
    key: ClaimKey, answer: Answer[Any], found: _Found, end: int | None, paused_until_s: int | None
) -> dict[str, Cell]:
    claim, now_s = answer.value, found.now_s
    assert isinstance(claim, Claim)
    held = status(claim, now_s, found.stale_after_s)
    owned = held is not ClaimStatus.RELEASED
    return {
        "group": key.group_id,
        "topic": key.topic,
        "partition": key.partition,
        "current_offset": claim.current_offset,
        "log_end_offset": end,
        "lag": None if end is None or claim.current_offset is None else max(0, end - claim.current_offset),
        "consumer_id": f"{claim.client_id}-{claim.instance_id}" if owned else None,
        "client_id": claim.client_id if owned else None,
        "status": held.value,
        "owner_instance": claim.instance_id if owned else None,
        "owner_epoch": claim.epoch,
        "heartbeat_age_s": None if claim.heartbeat_at_s is None else max(0, now_s - claim.heartbeat_at_s),
        "heartbeat_at_s": claim.heartbeat_at_s,
        "released_at_s": claim.released_at_s,
        "paused_until_s": paused_until_s,
        "coordination_partition": answer.partition,
        "as_of_offset": answer.as_of_offset,
        "role": answer.role,
    }


def _show(records: Sequence[dict[str, Cell]], output: Output) -> None:
    if output is Output.JSON:
        show(records, COLUMNS, output)
        return
    paused = any(record["paused_until_s"] is not None for record in records)
    columns = (*COLUMNS, "paused_until") if paused else COLUMNS
    show([_for_people(record) for record in records], columns, output)


def _for_people(record: Mapping[str, Cell]) -> OutputRow:
    age_s, until_s = record.get("heartbeat_age_s"), record.get("paused_until_s")
    return {**record, "heartbeat_age": None if age_s is None else f"{age_s}s", "paused_until": utc(until_s)}


@app.command(
    "list",
    help=(
        "List claims with their owners and lag, in the columns of kafka-consumer-groups except"
        " HOST, which claims do not have."
    ),
)
def list_claims(
    context: typer.Context,
    group: GroupOption = None,
    topic: TopicOption = None,
    wait: Wait = False,
    stale_ok: StaleOk = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    views = _ClaimViews(context, timeout, stale_ok, wait=wait)
    with views.tables:
        found = views.claims(group, topic)
        records = views.records(found)
    _show(records, output_of(context))
    if not records:
        note("no client has ever claimed a partition there")


@app.command(
    "show",
    help=(
        "Show everything known about one claim: its owner, epoch, offsets, anomalies, and any pause of its"
        " group."
    ),
)
def show_claim(
    context: typer.Context,
    group: Annotated[str, typer.Argument(metavar="GROUP")],
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0, max=LAST_PARTITION)],
    stale_ok: StaleOk = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    if "/" in group or "/" in topic:
        raise ConfigError(f"{group} {topic}: no group or topic that can be claimed has a '/' in its name")
    views, key = _ClaimViews(context, timeout, stale_ok), ClaimKey(group, topic, partition)
    with views.tables:
        answer = views.get(claim_key(*key))
        # The group's pause is in the same coordination partition as the claim: that is where it decides.
        pause = views.get(pause_key(group), partition=answer.partition)
        end = views.ends([key]).get((topic, partition))
    if answer.value is None:
        note(
            f"no client has ever claimed {topic}/{partition} for {group} (coordination partition"
            f" {answer.partition}, offset {answer.as_of_offset})"
        )
        raise typer.Exit(1)
    now_s = system_clock.now_ms() // 1000
    claim, paused = answer.value, pause.value
    assert isinstance(claim, Claim)
    until_s = paused.expires_at_s if isinstance(paused, Pause) and is_paused(paused, now_s) else None
    record = _record(
        key, answer, _Found({}, {}, now_s, views.settings.claim_stale_after_s), end, until_s
    ) | _details(claim)
    if output_of(context) is Output.JSON:
        show_json(record)
        return
    times = {
        name.removesuffix("_s"): utc(record[name]) for name in record if name.endswith(("_at_s", "_until_s"))
    }
    shown = {name: cell for name, cell in record.items() if not name.endswith(("_at_s", "_until_s"))} | times
    show(
        [{"name": name.replace("_", "-"), "value": cell} for name, cell in shown.items()],
        ("name", "value"),
        Output.TABLE,
    )


def _details(claim: Claim) -> dict[str, Cell]:
    anomaly = claim.anomaly
    return {
        "last_client": claim.client_id,
        "last_instance": claim.instance_id,
        "proposed_offset": claim.proposed_offset,
        "clock_skew_s": skew_s(claim),
        "fenced_instances": list(claim.fenced),
        "anomalies": 0 if anomaly is None else anomaly.count,
        "last_anomaly": (
            None
            if anomaly is None
            else {
                "kind": anomaly.kind.value,
                "at_s": anomaly.at_s,
                "client_id": anomaly.client_id,
                "instance_id": anomaly.instance_id,
            }
        ),
    }


@app.command(
    help=(
        "Follow claims: on a terminal the list is refreshed, elsewhere each changed claim is one line (JSON"
        " lines with -o json)."
    )
)
def watch(
    context: typer.Context,
    group: GroupOption = None,
    topic: TopicOption = None,
    interval: Annotated[float, typer.Option(min=0.1, max=3_600, help="Seconds between two queries.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="Stop after this many queries.")] = None,
    stale_ok: StaleOk = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    views, output = _ClaimViews(context, timeout, stale_ok), output_of(context)
    before: dict[tuple[Cell, ...], OutputRow] = {}
    looks = WatchedLooks()

    def look_once() -> tuple[_Found, list[dict[str, Cell]]]:
        found = views.claims(group, topic)
        return found, views.records(found)

    with views.tables:
        look = 0
        while count is None or look < count:
            if look:
                sleep(interval)
            look += 1
            if (seen := looks.take(look_once)) is None:
                continue
            found, records = seen
            if sys.stdout.isatty() and output is Output.TABLE:
                print("\x1b[H\x1b[2J" + f"{utc(found.now_s)}   every {interval:g} s, Ctrl-C ends")
                _show(records, output)
                continue
            before = _tell_changes(records, before, found.now_s, output)


_CHANGING = ("status", "client_id", "owner_instance", "owner_epoch", "paused_until_s")


def _tell_changes(
    records: Sequence[OutputRow], before: Mapping[tuple[Cell, ...], OutputRow], now_s: int, output: Output
) -> dict[tuple[Cell, ...], OutputRow]:
    """Print the changes: each claim whose owner, status or pause differs from the last look. A heartbeat
    alone is no news.
    """
    seen: dict[tuple[Cell, ...], OutputRow] = {
        (record["group"], record["topic"], record["partition"]): record for record in records
    }
    for place, record in seen.items():
        old = before.get(place)
        if old is not None and all(old.get(name) == record.get(name) for name in _CHANGING):
            continue
        if output is Output.JSON:
            print(json_text({"at_s": now_s, **record}), flush=True)
            continue
        was = "" if old is None else f" (was {text(old['status'])}, {text(old.get('consumer_id'))})"
        pause = (
            f" paused until {utc(record['paused_until_s'])}"
            if record.get("paused_until_s") is not None
            else ""
        )
        where = " ".join(map(text, place))
        print(
            f"{utc(now_s)} {where} {text(record['status'])} {text(record.get('consumer_id'))}{pause}{was}",
            flush=True,
        )
    return seen

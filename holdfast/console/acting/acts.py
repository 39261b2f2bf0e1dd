"""The acts that people may do in the console, each noted in the audit topic before it is done, and after."""

from __future__ import annotations

import re
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from holdfast.clients.groups.admin import GroupAdmin
from holdfast.clients.groups.records import Move
from holdfast.clients.quarantine.records import Quarantine
from holdfast.clock import Clock, system_clock
from holdfast.console.access import ConsoleSession, RequestDenied
from holdfast.console.acting.audit import AuditRecord, AuditTrail
from holdfast.console.desk import ConsoleDesk
from holdfast.console.showing.aims import exact_aim, kind_of, scope_of
from holdfast.console.showing.depths import depth_of
from holdfast.console.watching.blocking import BlockingCalls, StillRunningError
from holdfast.console.watching.groups import GroupDesk
from holdfast.errors import ConfigError, HoldfastError, QuarantineError

QUARANTINE_S = 8.0
RESET_S = 45.0
"""The time for which a reset waits for the members of a group to give back their partitions."""
ACT_S = 60.0
"""The time for which an act is waited for."""
THREADS = 2
MOST_MINUTES = 30 * 24 * 60

Form = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ActOutcome:
    """The outcome of an act, in words; *failed* is why it did not succeed, or is not known to have."""

    told: str
    failed: bool


class Acts:
    """Carries out forms. Without an audit topic no act is allowed."""

    def __init__(self, desk: ConsoleDesk, clock: Clock = system_clock) -> None:
        topic = desk.settings.console_audit_topic
        self._desk, self._clock = desk, clock
        self._calls = BlockingCalls("what was done", THREADS, ACT_S)
        self._trail = None if topic is None else AuditTrail(desk.settings, topic)
        self._acts: dict[str, Callable[[str, Form], Awaitable[str]]] = {
            "pause": self._pause,
            "resume": self._resume,
            "reset": self._reset,
            "retry": self._retry,
        }

    async def act(self, what: str, on: str, form: Form, *, actor: ConsoleSession, address: str) -> ActOutcome:
        """Note that *actor* asks for *what* on *on*, do it, and note what came of it. If the first note
        cannot be made, nothing is done.
        """
        do = self._acts.get(what)
        if do is None or self._trail is None:
            raise RequestDenied(404, f"There is no act {what[:40]}.")
        act = uuid.uuid4().hex

        async def note(outcome: str, more: str = "") -> None:
            record = AuditRecord(
                act=act,
                at_ms=self._clock.now_ms(),
                who=actor.who,
                subject=actor.subject,
                address=address,
                what=what,
                on=on,
                outcome=outcome,
                more=more,
            )
            trail = self._trail
            assert trail is not None
            await self._calls.run(lambda: trail.write(record))

        try:
            await note("asked")
        except HoldfastError as error:
            return ActOutcome(f"Nothing was done: {error}", failed=True)
        try:
            told, outcome = await do(on, form), "done"
        except StillRunningError:
            told, outcome = f"It goes on, and what comes of it is not known after {ACT_S:g} s", "unknown"
        except (HoldfastError, RequestDenied) as error:
            told, outcome = str(error), "failed"
        try:
            await note(outcome, told)
        except HoldfastError as error:
            return ActOutcome(f"{told}. But this could not be noted: {error}", failed=True)
        return ActOutcome(told, failed=outcome != "done")

    async def close(self) -> None:
        """End the threads once what they do has ended."""
        await self._calls.close()

    @property
    def _groups(self) -> GroupDesk:
        if self._desk.acting is None:
            raise RequestDenied(404, "This console knows no groups.")
        return self._desk.acting

    async def _pause(self, group: str, form: Form) -> str:
        text = form.get("minutes", "").strip()
        if not re.fullmatch("[0-9]{1,6}", text) or not 1 <= int(text) <= MOST_MINUTES:
            raise ConfigError(f"minutes is {text[:40]!r}: write 1 to {MOST_MINUTES}")
        await self._groups.ask(lambda admin: admin.pause(group, int(text) * 60))
        return f"Group {group} is paused for {int(text)} minutes"

    async def _resume(self, group: str, form: Form) -> str:
        freed = await self._groups.ask(lambda admin: admin.resume(group))
        return f"Group {group} goes on" + (f"; {freed} partitions of a reset were freed" if freed else "")

    async def _reset(self, group: str, form: Form) -> str:
        aim, scope, kind = exact_aim(form), scope_of(form), kind_of(form)

        def reset(admin: GroupAdmin) -> tuple[Move, ...]:
            plan = admin.plan_reset(group, aim, scope, kind)
            return admin.reset_offsets(plan, deadline_s=RESET_S)

        moves = await self._groups.ask(reset)
        return f"{len(moves)} partitions of group {group} were sent {aim.where} {aim.value}"

    async def _retry(self, coordinates: str, form: Form) -> str:
        quarantine = Quarantine(self._desk.settings, timeout_s=QUARANTINE_S, tail=depth_of(form))

        def again() -> list[str]:
            found = quarantine.records(lambda each: each.is_named(coordinates))
            if not found:
                left_out = f" among the newest {depth_of(form)} offsets" if quarantine.left_out else ""
                raise QuarantineError(f"the quarantine holds no {coordinates[:200]}{left_out}")
            if sent := [each.retried_to for each in found if each.retried_to is not None]:
                raise QuarantineError(f"{coordinates[:200]} was tried again already, as {sent[0]}")
            return sorted({copy for _, copy in quarantine.retry(found)})

        copies = await self._calls.run(again)
        return f"{coordinates} was sent again, as {', '.join(copies)}"

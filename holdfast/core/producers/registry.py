"""The right to send under a producer's name: commands on a topic, a row for each name, answers on another
(docs/producers.md, The registry).

`register` gives the name's id and its next epoch, and fences the last holder. `bump` raises the epoch
for the holder itself, which continues after an error. A command that is repeated under the same request id is
answered the same again and changes nothing.

A recreated registry has forgotten its epochs, and ledgers have not. So each registration names the least
epoch to be given: the time of its clock, which is higher than all epochs of earlier registries.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import TypeAlias

import msgspec

from holdfast.core.engine.declared.partitioners import by_key
from holdfast.core.engine.declared.processor import Emit
from holdfast.core.engine.state.rows import Rows
from holdfast.core.producers.stamps import LIMIT_EPOCH, LIMIT_NAME_BYTES
from holdfast.core.untrusted import UNFIT, careful
from holdfast.errors import DecodeError

LIMIT_TEXT = 249
LIMIT_LEAST_EPOCH = LIMIT_EPOCH // 2
"""Above it, epochs rise one by one with each registration."""
PARTITION_BITS = 16
IDS_KEY = "/ids"
"""Row of the next id; no name's key, since those begin with `=`."""


class Register(msgspec.Struct, frozen=True, kw_only=True, tag="register"):
    """A process takes the name over. *instance* identifies it to people.

    It gets *least_epoch* or a higher one; earlier releases name none.
    """

    name: str
    request: str
    instance: str = ""
    least_epoch: int = 0


class Bump(msgspec.Struct, frozen=True, kw_only=True, tag="bump"):
    """The holder of *epoch* wants the next one."""

    name: str
    request: str
    producer_id: int
    epoch: int


RegistryCommand: TypeAlias = Register | Bump


class RegistryError(StrEnum):
    """Why a command changed nothing."""

    NONE = ""
    UNKNOWN = "unknown"
    FENCED = "fenced"


class Registration(msgspec.Struct, frozen=True, array_like=True):
    """The holder of a name. *request* is the last command that was obeyed, to know it again."""

    producer_id: int
    epoch: int
    instance: str
    at_ms: int
    first_at_ms: int
    request: str
    fenced: int = 0
    """The number of commands of former holders that were refused."""


class RegistryAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command: the id and epoch to send under, or the error with the epoch that counts."""

    request: str
    name: str
    error: RegistryError = RegistryError.NONE
    producer_id: int = -1
    epoch: int = -1


class ReceivedCommand(msgspec.Struct, frozen=True):
    """A command and the partition it came by."""

    command: RegistryCommand
    partition: int


_decode = msgspec.json.Decoder(RegistryCommand).decode
encode_command = msgspec.json.Encoder().encode
encode_answer = msgspec.json.Encoder().encode
decode_answer = careful(msgspec.json.Decoder(RegistryAnswer).decode)


def name_key(name: str) -> str:
    """Return the row key of a name."""
    return f"={name}"


def decode(value: bytes | None, partition: int) -> ReceivedCommand:
    """Return the command in a record; for inputs ("value", "partition")."""
    try:
        command = _decode(value or b"")
    except UNFIT as error:
        raise DecodeError(f"no command of the registry: {error}") from None
    if not command.name or len(command.name.encode()) > LIMIT_NAME_BYTES or not command.name.isprintable():
        raise DecodeError(
            f"producer name {command.name[:80]!r}: use 1 to {LIMIT_NAME_BYTES} bytes of printable text"
        )
    if not 0 < len(command.request) <= LIMIT_TEXT:
        raise DecodeError(f"request id of {len(command.request)} characters: use 1 to {LIMIT_TEXT}")
    if isinstance(command, Register) and not 0 <= command.least_epoch <= LIMIT_LEAST_EPOCH:
        raise DecodeError(
            f"least epoch {command.least_epoch} of producer {command.name[:80]}: use 0 to {LIMIT_LEAST_EPOCH}"
        )
    return ReceivedCommand(command, partition)


def fold(rows: Rows[Registration], asked: ReceivedCommand, at_ms: int, *, answers: str) -> Iterator[Emit]:
    """Obey a command and emit the answer to topic *answers*, keyed by name, in the partition of the
    command.
    """
    answer = obey(rows, asked, at_ms)
    yield Emit(answers, answer.name, encode_answer(answer), partition=asked.partition)


def obey(rows: Rows[Registration], asked: ReceivedCommand, at_ms: int) -> RegistryAnswer:
    """Apply a command to the rows and return its answer."""
    command = asked.command
    key = name_key(command.name)
    held = rows.get(key)
    if held is not None and held.request == command.request:
        return _answer(command, held)
    if isinstance(command, Register):
        if held is None:
            held = Registration(
                _next_id(rows, asked.partition),
                command.least_epoch,
                command.instance,
                at_ms,
                at_ms,
                command.request,
            )
        else:
            held = msgspec.structs.replace(
                held,
                epoch=max(held.epoch + 1, command.least_epoch),
                instance=command.instance,
                at_ms=at_ms,
                request=command.request,
            )
        rows[key] = held
        return _answer(command, held)
    if held is None:
        return RegistryAnswer(request=command.request, name=command.name, error=RegistryError.UNKNOWN)
    if (held.producer_id, held.epoch) != (command.producer_id, command.epoch):
        rows[key] = msgspec.structs.replace(held, fenced=held.fenced + 1)
        return _answer(command, held, RegistryError.FENCED)
    held = msgspec.structs.replace(held, epoch=held.epoch + 1, at_ms=at_ms, request=command.request)
    rows[key] = held
    return _answer(command, held)


def _answer(
    command: RegistryCommand, held: Registration, error: RegistryError = RegistryError.NONE
) -> RegistryAnswer:
    return RegistryAnswer(
        request=command.request,
        name=command.name,
        error=error,
        producer_id=held.producer_id,
        epoch=held.epoch,
    )


def _next_id(rows: Rows[Registration], partition: int) -> int:
    """Return an id that no other partition gives out: its last bits are the partition's."""
    ids = rows.get(IDS_KEY)
    count = 0 if ids is None else ids.producer_id
    rows[IDS_KEY] = Registration(count + 1, -1, "", 0, 0, "")
    return count << PARTITION_BITS | partition


def route(key: str, partitions: int) -> int | None:
    """Return the partition of a name's row: that of the commands, which are keyed by name; None for the
    row of ids.
    """
    return by_key(key[1:], partitions) if key.startswith("=") else None

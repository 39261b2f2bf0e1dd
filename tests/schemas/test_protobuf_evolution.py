"""Messages of one version of a Protobuf file, read by the class of another: exactly, or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from holdfast import Protobuf
from holdfast.errors import DecodeError
from holdfast.schemas.frames import header
from holdfast.schemas.registry import SchemaRegistry

Field = FieldDescriptorProto
_numbers = itertools.count()


def built(
    make: Callable[[Any], None], syntax: str = "proto3", imported: Callable[[Any], None] | None = None
) -> Any:
    """Return the class of the message M of a file, which may import another one."""
    pool, number = DescriptorPool(), next(_numbers)
    file = FileDescriptorProto(name=f"evolved{number}.proto", package="e", syntax=syntax)
    if imported is not None:
        other = FileDescriptorProto(name=f"imported{number}.proto", package="i", syntax=syntax)
        imported(other)
        pool.AddSerializedFile(other.SerializeToString())
        file.dependency.append(other.name)
    make(file)
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName("e.M"))


def fields(
    *numbers: int,
    kind: int = Field.TYPE_STRING,
    oneof: tuple[int, ...] = (),
    enum: tuple[int, ...] = (),
    type_name: str = "",
) -> Callable[[Any], None]:
    def make(file: Any) -> None:
        if enum:
            declared = file.enum_type.add(name="E")
            for number in enum:
                declared.value.add(name=f"V{number}", number=number)
        message = file.message_type.add(name="M")
        if oneof:
            message.oneof_decl.add(name="only")
        for number in numbers:
            field = message.field.add(name=f"f{number}", number=number, type=kind, label=Field.LABEL_OPTIONAL)
            if enum or type_name:
                field.type_name = type_name or ".e.E"
            if number in oneof:
                field.oneof_index = 0

    return make


def read(memory: SchemaRegistry, written: Any, reads: Any) -> Any:
    """Return a message of another class as the class *reads* has it."""
    writer = Protobuf(type(written))
    needed = writer.needed(memory, register=True)
    schema_id = memory.register(f"m{next(_numbers)}", needed).schema_id
    return Protobuf(reads).decode(header(schema_id) + writer.payload(written))


def test_fields_may_come_and_go_and_unknown_ones_are_kept(memory: SchemaRegistry) -> None:
    one, two = built(fields(1)), built(fields(1, 2))
    assert read(memory, two(f1="a", f2="b"), one).f1 == "a"
    assert (
        read(memory, two(f1="a", f2="b"), one).SerializeToString() == two(f1="a", f2="b").SerializeToString()
    )
    assert read(memory, one(f1="a"), two).f2 == ""


def test_a_number_that_a_closed_enum_does_not_have_is_not_read_as_its_default(memory: SchemaRegistry) -> None:
    """An open one keeps the number."""
    for syntax, kind in (("proto2", "closed"), ("proto3", "open")):
        old = built(fields(1, kind=Field.TYPE_ENUM, enum=(0, 1)), syntax)
        new = built(fields(1, kind=Field.TYPE_ENUM, enum=(0, 1, 2)), syntax)
        assert read(memory, new(f1=1), old).f1 == 1
        if kind == "open":
            assert read(memory, new(f1=2), old).f1 == 2
        else:
            with pytest.raises(DecodeError, match=r"field 1 of e\.M is 2, which e\.E does not have"):
                read(memory, new(f1=2), old)


def test_so_it_is_within_messages_lists_and_maps(memory: SchemaRegistry) -> None:
    def make(*values: int) -> Callable[[Any], None]:
        def add(file: Any) -> None:
            enum = file.enum_type.add(name="E")
            for number in values:
                enum.value.add(name=f"V{number}", number=number)
            inner = file.message_type.add(name="I")
            inner.field.add(
                name="e", number=1, type=Field.TYPE_ENUM, type_name=".e.E", label=Field.LABEL_REPEATED
            )
            message = file.message_type.add(name="M")
            entry = message.nested_type.add(name="ByNameEntry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, type=Field.TYPE_STRING, label=Field.LABEL_OPTIONAL)
            entry.field.add(
                name="value", number=2, type=Field.TYPE_MESSAGE, type_name=".e.I", label=Field.LABEL_OPTIONAL
            )
            message.field.add(
                name="all", number=1, type=Field.TYPE_MESSAGE, type_name=".e.I", label=Field.LABEL_REPEATED
            )
            message.field.add(
                name="by_name",
                number=2,
                type=Field.TYPE_MESSAGE,
                type_name=".e.M.ByNameEntry",
                label=Field.LABEL_REPEATED,
            )

        return add

    old, new = built(make(0, 1), "proto2"), built(make(0, 1, 2), "proto2")
    assert list(read(memory, new(all=[{"e": [1]}], by_name={"a": {"e": [1]}}), old).by_name["a"].e) == [1]
    for wrong in (new(all=[{}, {"e": [1, 2]}]), new(by_name={"a": {"e": [2]}})):
        with pytest.raises(DecodeError, match=r"field 1 of e\.I is 2"):
            read(memory, wrong, old)


def test_fields_that_may_be_set_together_are_not_read_as_one_of_them(memory: SchemaRegistry) -> None:
    both, one_of = built(fields(1, 2)), built(fields(1, 2, oneof=(1, 2)))
    with pytest.raises(DecodeError, match=r"fields 1 and 2 of e\.M may be set together there"):
        read(memory, both(f1="a", f2="b"), one_of)
    assert read(memory, one_of(f2="b"), both).f2 == "b"
    assert read(memory, built(fields(1))(f1="a"), one_of).WhichOneof("only") == "f1"
    assert read(memory, built(fields(1, 2, 3, oneof=(1, 2, 3)))(f2="b"), one_of).WhichOneof("only") == "f2"


def test_a_message_that_a_file_imports_is_compared_too(memory: SchemaRegistry) -> None:
    def imported(kind: int) -> Callable[[Any], None]:
        def add(file: Any) -> None:
            file.message_type.add(name="I").field.add(
                name="x", number=1, type=kind, label=Field.LABEL_OPTIONAL
            )

        return add

    outer = fields(1, kind=Field.TYPE_MESSAGE, type_name=".i.I")
    old, new = (built(outer, imported=imported(kind)) for kind in (Field.TYPE_INT64, Field.TYPE_SINT64))
    with pytest.raises(DecodeError, match=r"field 1 of i\.I is sint64 x there, and here it is int64 x"):
        read(memory, new(f1={"x": -1}), old)
    assert read(memory, built(outer, imported=imported(Field.TYPE_INT32))(f1={"x": -1}), old).f1.x == -1

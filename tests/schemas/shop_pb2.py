"""The output of protoc for the two files below; `common.proto` is imported by `shop.proto`. Made here from
their descriptors.

// tests/schemas/common.proto             // tests/schemas/shop.proto
syntax = "proto3";                        syntax = "proto3";
package tests.common;                     package tests.shop;
message Address {                         import "tests/schemas/common.proto";
  string street = 1;                      message Ignored { map<string, int64> counts = 1; message Deep { int64 a = 1; } }
}                                         message Order {
                                            message Line { string item = 1; int64 pieces = 2; }
                                            string customer = 1;
                                            int64 cents = 2;
                                            repeated Line lines = 3;
                                            tests.common.Address to = 4;
                                          }
                                          message Big { string customer = 1; int64 count = 2; int64 cents = 3; }
"""  # noqa: E501

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.internal import builder

TEXT, INT64, MESSAGE = (
    FieldDescriptorProto.TYPE_STRING,
    FieldDescriptorProto.TYPE_INT64,
    FieldDescriptorProto.TYPE_MESSAGE,
)


def _message(
    name: str, *fields: tuple[str, Any], inside: tuple[DescriptorProto, ...] = ()
) -> DescriptorProto:
    made = DescriptorProto(name=name, nested_type=inside)
    for number, (field, of) in enumerate(fields, 1):
        many = (
            FieldDescriptorProto.LABEL_REPEATED
            if isinstance(of, list)
            else FieldDescriptorProto.LABEL_OPTIONAL
        )
        kind = of[0] if isinstance(of, list) else of
        is_message = isinstance(kind, str)
        made.field.add(
            name=field,
            number=number,
            label=many,
            type=MESSAGE if is_message else kind,
            type_name=kind if is_message else None,
        )
    return made


_entry = _message("CountsEntry", ("key", TEXT), ("value", INT64))
_entry.options.map_entry = True
_common = FileDescriptorProto(name="tests/schemas/common.proto", package="tests.common", syntax="proto3")
_common.message_type.append(_message("Address", ("street", TEXT)))
_shop = FileDescriptorProto(name="tests/schemas/shop.proto", package="tests.shop", syntax="proto3")
_shop.dependency.append(_common.name)
_shop.message_type.extend(
    [
        _message(
            "Ignored",
            ("counts", [".tests.shop.Ignored.CountsEntry"]),
            inside=(_entry, _message("Deep", ("a", INT64))),
        ),
        _message(
            "Order",
            ("customer", TEXT),
            ("cents", INT64),
            ("lines", [".tests.shop.Order.Line"]),
            ("to", ".tests.common.Address"),
            inside=(_message("Line", ("item", TEXT), ("pieces", INT64)),),
        ),
        _message("Big", ("customer", TEXT), ("count", INT64), ("cents", INT64)),
    ]
)
Address: Any
Ignored: Any
Order: Any
Big: Any
for _file in (_common, _shop):
    _made = descriptor_pool.Default().AddSerializedFile(_file.SerializeToString())
    builder.BuildMessageAndEnumDescriptors(_made, globals())
    builder.BuildTopDescriptorsAndMessages(_made, __name__, globals())

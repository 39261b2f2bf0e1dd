"""The handling of a registry's answers: those that are kept, and those that mean that it is not there yet."""

from __future__ import annotations

import io
import json
import os
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast import Avro
from holdfast.config import SchemaRegistrySettings
from holdfast.errors import DecodeError, Later, SchemaError
from holdfast.schemas import registry
from holdfast.schemas.frames import header
from holdfast.schemas.registry import SchemaRegistry, SchemaText
from tests.support.harness import wait_for
from tests.support.limits import at_most
from tests.support.patience import DEADLINE_S
from tests.support.places import TLS

SCHEMA = {"schema": '"string"'}
DRIP_S = 0.3
DRIPPING_S = DRIP_S * len(json.dumps(SCHEMA))
"""The least duration of an answer that drips."""
Answer = tuple[int, Any]


class Scripted:
    """A server that answers by a script, and counts its requests."""

    def __init__(self) -> None:
        self.answer: Callable[[str], Answer] = lambda path: (200, SCHEMA)
        self.drips = False
        self.asked: Counter[str] = Counter()
        self.authorization: list[str | None] = []
        self.url = ""

    @contextmanager
    def served(self, context: ssl.SSLContext | None = None) -> Iterator[Scripted]:
        """Serve, over TLS where a context is given."""
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                scripted.asked[self.path] += 1
                scripted.authorization.append(self.headers.get("Authorization"))
                status, told = scripted.answer(self.path)
                content = told if isinstance(told, bytes) else json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                for byte in content:
                    self.wfile.write(bytes([byte]))
                    if scripted.drips:
                        self.wfile.flush()
                        threading.Event().wait(DRIP_S)

            do_POST = do_GET

            def log_message(self, format: str, *arguments: object) -> None:
                return None

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        if context is not None:
            # The handshake is a handler's, or a client that breaks it would hold up all others.
            server.socket = context.wrap_socket(
                server.socket, server_side=True, do_handshake_on_connect=False
            )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        self.url = f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join(DEADLINE_S)


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted().served() as server:
        yield server


def asked_at(url: str, timeout_s: float = 60.0, **more: Any) -> SchemaRegistry:
    return registry.use(
        SchemaRegistrySettings(schema_registry_url=url, schema_registry_timeout_s=timeout_s, **more)
    )


def test_a_schema_is_asked_for_once_by_all_serdes(scripted: Scripted) -> None:
    asked_at(scripted.url)
    first, second = Avro(str).for_topic("a", "value"), Avro(str).for_topic("b", "value")
    for serde in (first, second, first):
        assert serde.decode(header(3) + b"\x02x") == "x"
    assert scripted.asked == {"/schemas/ids/3": 1}


def test_an_id_means_the_same_whatever_topic_it_comes_by(scripted: Scripted) -> None:
    """A cache by subject would give the second topic's reader the first one's schema, or the first topic two
    readers of one schema.
    """
    scripted.answer = lambda path: (200, {"schema": '"string"' if path.endswith("/3") else '"long"'})
    asked_at(scripted.url)
    serde = Avro(str).for_topic("a", "value")
    assert serde.decode(header(3) + b"\x02x") == "x"
    with pytest.raises(DecodeError, match=r"schema 4 of subject .*: does not fit: is long, not string"):
        serde.decode(header(4) + b"\x02x")
    assert serde.decode(header(3) + b"\x02y") == "y"
    assert registry.current().schema(3) == SchemaText("AVRO", '"string"')


NOT_THERE: dict[str, Answer] = {
    "500": (500, {"error_code": 50001, "message": "error in the backend"}),
    "503": (503, b"no JSON"),
    "429": (429, {"error_code": 429, "message": "slow down"}),
    "401": (401, {"error_code": 401, "message": "who are you"}),
    "403": (403, {"error_code": 403, "message": "not you"}),
    "a page of another server": (404, b"<html>not found</html>"),
    "another API": (404, {"error_code": 0, "message": "no such resource"}),
    "a page": (200, b"<html>hello</html>"),
    "another shape": (200, ["a", "list"]),
    "nothing": (200, b""),
    "no schema": (200, {}),
    "an empty schema": (200, {"schema": ""}),
    "a schema of no text": (200, {"schema": 5}),
    "a type of no text": (200, {"schema": '"string"', "schemaType": 5}),
    "references to nothing": (200, {"schema": '"string"', "references": [{"name": "a", "subject": "b"}]}),
    "a version that is none": (
        200,
        {"schema": '"string"', "references": [{"name": "a", "subject": "b", "version": "c"}]},
    ),
}


@pytest.mark.parametrize("what", NOT_THERE)
def test_no_record_is_to_blame_for_a_registry_that_is_not_there(scripted: Scripted, what: str) -> None:
    asked = asked_at(scripted.url)
    scripted.answer = lambda path: NOT_THERE[what]
    serde = Avro(str)
    with pytest.raises(Later, match="schema registry http://127") as caught:
        serde.decode(header(3) + b"\x02x")
    assert caught.value.needs == f"schema registry {scripted.url}" == asked.place
    scripted.answer = lambda path: (200, SCHEMA)
    assert serde.decode(header(3) + b"\x02x") == "x"


@pytest.mark.long
def test_a_registry_that_is_away_or_slow_is_awaited_within_the_deadline(scripted: Scripted) -> None:
    asked_at("http://127.0.0.1:1")
    with pytest.raises(Later):
        Avro(str).decode(header(3) + b"\x02x")
    asked_at(scripted.url, 0.5)
    scripted.drips = True
    with (
        at_most(DRIPPING_S, "an answer that is not waited for to its end"),
        pytest.raises(Later, match=r"no answer within 0\.5 s|timed out"),
    ):
        Avro(str).decode(header(3) + b"\x02x")
    with at_most(DRIPPING_S, "to ask a silent registry again, which is waited for less"):
        for _ in range(3):
            with pytest.raises(Later, match=r"has not answered yet|no answer within|timed out"):
                Avro(str).decode(header(3) + b"\x02x")
    assert sum(each.name == "holdfast-schema-registry" for each in threading.enumerate()) <= 2
    scripted.drips = False
    wait_for("the dripping answer to end", lambda: not registry.current()._is_silent, DEADLINE_S)
    wait_for("an answer in time", lambda: decoded() == "x", DEADLINE_S)


def decoded() -> str | None:
    """Return the value, None where the registry takes too long."""
    with suppress(Later):
        return Avro(str).decode(header(3) + b"\x02x")
    return None


def test_an_id_that_is_not_there_is_the_records_fault_and_not_asked_for_again_at_once(
    scripted: Scripted,
) -> None:
    scripted.answer = lambda path: (404, {"error_code": 40403, "message": "Schema not found"})
    asked_at(scripted.url)
    for _ in range(3):
        with pytest.raises(DecodeError, match="has no schema of id 3"):
            Avro(str).decode(header(3) + b"\x02x")
    assert scripted.asked == {"/schemas/ids/3": 1}


def test_no_record_is_to_blame_for_a_registry_that_is_another_one(scripted: Scripted) -> None:
    schemas = {1: '"string"', 2: '"string"', 3: '"string"', 4: '"string"'}

    def answer(path: str) -> Answer:
        found = schemas.get(int(path.split("/ids/")[1].partition("?")[0].partition("/")[0]))
        unknown = {"error_code": 40403, "message": "Schema not found"}
        return (404, unknown) if found is None else (200, {"schema": found})

    scripted.answer = answer
    asked = asked_at(scripted.url)
    text: Any = Avro(str)
    record = {number: header(number) + b"\x04hi" for number in (1, 2, 3, 4, 9)}
    assert text.decode(record[1]) == "hi"
    right = dict(schemas)
    schemas.update({1: '"long"', 2: '"int"', 3: '"bytes"'})
    del schemas[4]
    for number in (2, 4):  # the one has another schema there, and the other is unknown
        with pytest.raises(
            Later, match="does not tell the schemas any more that it told of ids 1: it is another"
        ):
            text.decode(record[number])
    assert text.decode(record[1]) == "hi", "what was read is known"
    schemas.clear()
    schemas.update(right)
    assert [text.decode(record[number]) for number in (2, 3, 4)] == ["hi"] * 3
    with pytest.raises(DecodeError, match="has no schema of id 9"):
        text.decode(record[9])
    del schemas[1], schemas[2]  # deleted for good, and the third is still returned
    asked._unknown.clear()
    with pytest.raises(DecodeError, match="has no schema of id 9"):
        text.decode(record[9])


def test_without_an_address_folds_wait_and_name_the_setting() -> None:
    registry.use(SchemaRegistrySettings())
    with pytest.raises(Later, match="schema_registry_url is not set"):
        Avro(str).decode(header(3) + b"\x02x")


def test_the_user_is_sent_and_the_password_is_not_shown(scripted: Scripted) -> None:
    asked = asked_at(scripted.url, schema_registry_username="ada", schema_registry_password="hunter2")
    Avro(str).decode(header(3) + b"\x02x")
    assert scripted.authorization == ["Basic YWRhOmh1bnRlcjI="]
    assert "hunter2" not in repr(asked.settings)


def test_a_registry_with_tls_is_known_by_its_authority_and_shown_a_certificate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "server.pem", TLS / "server-key.pem")
    context.load_verify_locations(TLS / "ca.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    monkeypatch.setattr("sys.stderr", io.StringIO())  # where the server logs handshakes that were refused
    authority: dict[str, Any] = {"schema_registry_ca": TLS / "ca.pem"}
    client: dict[str, Any] = {
        "schema_registry_cert": TLS / "client.pem",
        "schema_registry_key": TLS / "client-key.pem",
    }
    with Scripted().served(context) as scripted:
        for given, why in ((client, "certificate verify failed"), (authority, "")):
            asked_at(scripted.url, **given)
            with pytest.raises(Later, match=f"cannot be asked: .*{why}"):
                Avro(str).decode(header(3) + b"\x02x")
        assert not scripted.asked
        asked_at(scripted.url, **authority, **client)
        assert Avro(str).decode(header(3) + b"\x02x") == "x"
    asked_at(scripted.url, schema_registry_ca=TLS / "nothing.pem")
    with pytest.raises(Later, match=r"cannot be asked with these settings: .*No such file"):
        Avro(str).decode(header(3) + b"\x02x")


def test_that_a_registry_fails_to_compare_schemas_is_no_reason_to_wait(scripted: Scripted) -> None:
    asked = asked_at(scripted.url)
    failed = 500, {"error_code": 500, "message": "Syntax error: " + "x" * 10_000}
    scripted.answer = lambda path: failed
    with pytest.raises(
        SchemaError, match=r"^subject s: its registry cannot compare the schema .* answers 500: Syntax error"
    ) as told:
        asked.is_compatible("s", SchemaText("AVRO", '"string"'))
    assert len(str(told.value)) < 800
    scripted.answer = lambda path: (503, {"error_code": 503, "message": "not now"})
    with pytest.raises(Later, match="answers 503"):
        asked.is_compatible("s", SchemaText("AVRO", '"string"'))


def test_the_kept_answers_have_a_limit(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "LIMIT_SCHEMAS", 4)
    asked = asked_at(scripted.url)
    for schema_id in range(20):
        asked.schema(schema_id)
    assert len(asked._by_id) == 4


@pytest.mark.process
def test_a_forked_process_has_connections_of_its_own(scripted: Scripted) -> None:
    asked = asked_at(scripted.url)
    asked.schema(1)
    mine = asked._client
    child = os.fork()
    if child == 0:
        try:
            asked.schema(2)
            os._exit(0 if asked._client is not mine else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0

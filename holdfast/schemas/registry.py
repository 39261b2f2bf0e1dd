"""The schema registry of this process: schemas that are read once and kept, and the errors of requests.

A registry that is away, slow or refuses is `Later`: no record is to blame for it. That an id, a subject or a
schema is not there is an answer.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any, TypeVar
from uuid import UUID

from holdfast.clock import system_clock
from holdfast.config import SchemaRegistrySettings, settings_from_environment
from holdfast.errors import Later, SchemaError
from holdfast.schemas.bounded import Bounded
from holdfast.schemas.frames import SchemaId

T = TypeVar("T")

LIMIT_SCHEMAS = 1_000
"""The most schemas that are kept, by id and by subject and version."""
UNKNOWN_FOR_S = 5.0
"""An id that the registry does not know is not asked for again for so long: a topic may be full of it."""
WITNESSES = 3
"""The number of schemas by which a registry is recognised: one may be deleted for good."""
PROBE_S = 0.2
"""The wait for a registry that was silent last time: its caller is blocked, and retries."""
_NOT_FOUND = (40400, 40401, 40402, 40403)
"""Error codes for a schema, subject or version that is not there. A 404 with another one is the answer of
another server.
"""
_FAILED = 500
"""The answer of a registry that does not know the form of the schemas that it is to compare. Waiting does not
help then.
"""
LIMIT_SAID = 300
"""The most of a registry's own words in an error: some repeat the whole schema."""


@dataclass(frozen=True, slots=True)
class SchemaText:
    """A schema as a registry keeps it: its kind (AVRO, JSON, PROTOBUF), its text, and the schemas that it
    names, each as name, subject and version.
    """

    kind: str
    text: str
    references: tuple[tuple[str, str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """A schema that is registered under a subject."""

    subject: str
    version: int
    schema_id: int
    schema: SchemaText


class NotRegisteredError(SchemaError):
    """The registry answers, and does not have the requested schema."""


class SchemaRegistry:
    """A registry by Confluent's client. Nothing is contacted before the first question.

    What an id, or a version of a subject, means never changes, so each is asked for once. Every question has
    a deadline, and any number of threads may ask.
    """

    def __init__(self, settings: SchemaRegistrySettings) -> None:
        self.settings = settings
        self._by_id: Bounded[tuple[SchemaId, str | None], SchemaText] = Bounded(LIMIT_SCHEMAS)
        self._by_version: Bounded[tuple[str, int], SchemaVersion] = Bounded(LIMIT_SCHEMAS)
        self._ids: Bounded[tuple[str, SchemaText], int] = Bounded(LIMIT_SCHEMAS)
        self._unknown: Bounded[SchemaId, float] = Bounded(LIMIT_SCHEMAS)
        self._witnesses: dict[tuple[SchemaId, str | None], SchemaText] = {}
        """The first schemas it returned: a registry that returns none of them any more is another one."""
        self._client: Any = None
        self._pid = 0
        self._is_silent = False
        self._asking: Thread | None = None

    @property
    def place(self) -> str:
        """Return its name for an operator."""
        return f"schema registry {self.settings.schema_registry_url}"

    # -- what never changes

    def schema(self, schema_id: SchemaId, form: str | None = None) -> SchemaText:
        """Return the schema of this id, in a registry's *form* of it if one is named; raises
        NotRegisteredError for an id that is unknown.
        """
        if (found := self._by_id.used((schema_id, form))) is not None:
            return found
        if (until_s := self._unknown.get(schema_id)) is not None and system_clock.monotonic_s() < until_s:
            raise NotRegisteredError(f"{self.place} has no schema of id {schema_id}")
        try:
            answer = self._ask(lambda client: _schema_of(client, schema_id, form))
        except NotRegisteredError:
            self.require_same()
            self._unknown[schema_id] = system_clock.monotonic_s() + UNKNOWN_FOR_S
            raise NotRegisteredError(f"{self.place} has no schema of id {schema_id}") from None
        found = self._by_id[schema_id, form] = self._made(_text, answer)
        if len(self._witnesses) < WITNESSES:
            self._witnesses[schema_id, form] = found
        return found

    def require_same(self, doubted: SchemaId | None = None) -> None:
        """Raise Later if the registry no longer returns any of the schemas that it returned first: then it is
        another one, or has lost them, and no record is to blame for its answers. Its answer about the id
        *doubted* is forgotten then.
        """
        known = {place: text for place, text in self._witnesses.items() if place[0] != doubted}
        if not known or any(self._tells(*place) == text for place, text in known.items()):
            return
        for place in [each for each in self._by_id if each[0] == doubted and each not in known]:
            del self._by_id[place]
            self._witnesses.pop(place, None)
        ids = ", ".join(str(schema_id) for schema_id, _ in known)
        raise self._later(
            f"does not tell the schemas any more that it told of ids {ids}: it is another registry than"
            " before, or has lost them; see that schema_registry_url leads to the one that the records were"
            " written with"
        )

    def _tells(self, schema_id: SchemaId, form: str | None) -> SchemaText | None:
        try:
            return self._made(_text, self._ask(lambda client: _schema_of(client, schema_id, form)))
        except NotRegisteredError:
            return None

    def version(self, subject: str, version: int, form: str | None = None) -> SchemaVersion:
        """Return a version of a subject; raises NotRegisteredError for one that is not there."""
        if (found := self._by_version.used((subject, version))) is not None:
            return found
        answer = self._ask(lambda client: client.get_version(subject, version, fmt=form))
        found = self._by_version[subject, version] = self._made(_version, answer)
        return found

    def id_of(self, subject: str, schema: SchemaText) -> int:
        """Return the id that *schema* was registered with under *subject*; raises NotRegisteredError where it
        was not.
        """
        if (found := self._ids.used((subject, schema))) is not None:
            return found
        found = self._ids[subject, schema] = self.registered(subject, schema).schema_id
        return found

    # -- what changes

    def registered(self, subject: str, schema: SchemaText) -> SchemaVersion:
        """Return the version that *schema* is of *subject*; raises NotRegisteredError where it is none."""
        found = self._ask(lambda client: client.lookup_schema(subject, _schema(schema)))
        return SchemaVersion(subject, int(found.version), int(found.schema_id), schema)

    def subjects_of(self, schema_id: int) -> list[str]:
        """Return the subjects that have a version of this id."""
        return sorted(map(str, self._ask(lambda client: client.get_subjects_by_schema_id(schema_id))))

    def latest(self, subject: str) -> SchemaVersion | None:
        """Return the newest version of a subject, None where it has none."""
        try:
            return self._made(_version, self._ask(lambda client: client.get_latest_version(subject)))
        except NotRegisteredError:
            return None

    def is_compatible(self, subject: str, schema: SchemaText) -> bool:
        """Return whether *schema* may follow the newest version of *subject*, as the registry judges; raises
        SchemaError where it fails to.
        """
        try:
            return bool(self._ask(lambda client: client.test_compatibility(subject, _schema(schema))))
        except NotRegisteredError:
            return True
        except Later as error:
            if getattr(error.__cause__, "http_status_code", 0) != _FAILED:
                raise
            text = (
                f"subject {subject}: its registry cannot compare the schema with what it has: {error}. If it"
                " says so again, it does not know schemas of this form: compare them yourself, and set the"
                " subject's compatibility to NONE there"
            )
            raise SchemaError(text) from error

    def register(self, subject: str, schema: SchemaText) -> SchemaVersion:
        """Register *schema* under *subject*, where it is not yet; raises SchemaError when the registry
        refuses it.
        """
        self._ask(lambda client: client.register_schema(subject, _schema(schema)))
        return self.registered(subject, schema)

    # -- asking

    def _ask(self, question: Callable[[Any], T]) -> T:
        """Return the registry's answer, within the deadline, which is short while it is silent."""
        answer: Future[T] = Future()
        client = self._opened()
        deadline_s, began_s = self._deadline_s(), system_clock.monotonic_s()

        def ask() -> None:
            try:
                client.clear_caches()  # its own have no limit
                answer.set_result(question(client))
            except BaseException as error:  # noqa: BLE001  whoever asked raises it
                answer.set_exception(error)
            self._is_silent = self._was_silent(answer, system_clock.monotonic_s() - began_s)

        # A server that sends a byte now and then is within every timeout of the client; this thread may wait
        # for it.
        self._asking = Thread(target=ask, name="holdfast-schema-registry", daemon=True)
        self._asking.start()
        try:
            return answer.result(deadline_s)
        except TimeoutError:
            self._is_silent = True
            raise self._later(f"gave no answer within {deadline_s:g} s") from None
        except (Later, SchemaError):
            raise
        except Exception as error:
            raise self._explained(error) from error

    def _deadline_s(self) -> float:
        """Return how long to wait for an answer; raises Later while a silent registry has still not answered
        the last question.
        """
        timeout_s = self.settings.schema_registry_timeout_s
        if not self._is_silent:
            return timeout_s
        if self._asking is not None and self._pid == os.getpid():
            self._asking.join(min(PROBE_S, timeout_s))
            if self._asking.is_alive():
                raise self._later("has not answered yet")
        return min(PROBE_S, timeout_s) if self._is_silent else timeout_s

    @staticmethod
    def _was_silent(answer: Future[Any], spent_s: float) -> bool:
        """Return whether a question took its time and got no answer, be it an error of the registry."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        return spent_s > PROBE_S and not isinstance(answer.exception(), SchemaRegistryError | None)

    def _explained(self, error: Exception) -> Later | SchemaError:
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        if not isinstance(error, SchemaRegistryError):
            return self._later(f"cannot be asked: {type(error).__name__}: {error}")
        said = f"answers {error.http_status_code}: {error.error_message!s:.{LIMIT_SAID}}"
        if error.http_status_code == 404 and error.error_code in _NOT_FOUND:
            return NotRegisteredError(f"{self.place} {said}")
        if error.http_status_code in (409, 422):
            return SchemaError(f"{self.place} {said}")
        if error.http_status_code in (401, 403):
            said += "; set schema_registry_username and schema_registry_password, or a certificate"
        if error.http_status_code == 404:
            said += "; schema_registry_url must lead to Confluent's API"
        return self._later(said)

    def _made(self, make: Callable[[Any], T], answer: Any) -> T:
        """Return the decoded answer; raises Later for an invalid one."""
        try:
            return make(answer)
        except (AttributeError, TypeError, ValueError) as error:
            raise self._later(
                f"answers what is no schema ({error}): see that it is a schema registry"
            ) from error

    def _later(self, why: str) -> Later:
        return Later(f"{self.place} {why}", needs=self.place)

    def _opened(self) -> Any:
        if (
            self._client is None or self._pid != os.getpid()
        ):  # a forked process has no use for its parent's connections
            try:
                self._client, self._pid = _client(self.settings), os.getpid()
            except (OSError, ValueError) as error:  # of the files that the settings name
                raise self._later(
                    f"cannot be asked with these settings: {type(error).__name__}: {error}"
                ) from error
        return self._client

    def close(self) -> None:
        """Close its connections; a later question opens others."""
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()


def _schema_of(client: Any, schema_id: SchemaId, form: str | None) -> Any:
    if isinstance(schema_id, UUID):
        return client.get_schema_by_guid(str(schema_id), fmt=form)
    return client.get_schema(schema_id, fmt=form)


def _client(settings: SchemaRegistrySettings) -> Any:
    if settings.schema_registry_url is None:
        text = (
            "schema_registry_url is not set, and a serde with a schema reads a registry: set it to"
            " http://host:port"
        )
        raise Later(text, needs="setting schema_registry_url")
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
    except ImportError as error:
        text = (
            f"the schema registry's client is not installed ({error}): pip install 'holdfast[avro]', or"
            " protobuf, or jsonschema"
        )
        raise Later(text, needs="package confluent-kafka[schemaregistry]") from error
    if (requests := logging.getLogger("httpx2")).level == logging.NOTSET:
        requests.setLevel(logging.WARNING)  # it would log each request
    given: dict[str, Any] = {
        "url": settings.schema_registry_url,
        "timeout": settings.schema_registry_timeout_s,
        "max.retries": 0,  # the caller of a Later retries
        "cache.capacity": 1,
        "ssl.ca.location": settings.schema_registry_ca and str(settings.schema_registry_ca),
        "ssl.certificate.location": settings.schema_registry_cert and str(settings.schema_registry_cert),
        "ssl.key.location": settings.schema_registry_key and str(settings.schema_registry_key),
    }
    if settings.schema_registry_username is not None:
        given["basic.auth.user.info"] = (
            f"{settings.schema_registry_username}:{settings.schema_registry_password}"
        )
    return SchemaRegistryClient.new_client(
        {name: value for name, value in given.items() if value is not None}
    )


def _schema(schema: SchemaText) -> Any:
    from confluent_kafka.schema_registry import Schema, SchemaReference

    references = [SchemaReference(name, subject, version) for name, subject, version in schema.references]
    return Schema(schema.text, schema.kind, references)


def _text(answer: Any) -> SchemaText:
    kind, text = answer.schema_type or "AVRO", answer.schema_str
    if not isinstance(text, str) or not text or not isinstance(kind, str):
        raise TypeError(f"schema {text!r:.50} of type {kind!r:.50}")
    references = tuple(
        (str(each.name), str(each.subject), int(each.version)) for each in answer.references or ()
    )
    return SchemaText(kind, text, references)


def _version(answer: Any) -> SchemaVersion:
    return SchemaVersion(answer.subject, int(answer.version), int(answer.schema_id), _text(answer.schema))


# -- the one of this process

_current: SchemaRegistry | None = None


def use(settings: SchemaRegistrySettings) -> SchemaRegistry:
    """Have the serdes of this process ask the registry of *settings* from now on, and return it."""
    global _current
    wanted = SchemaRegistrySettings.of(settings)
    if _current is None or _current.settings != wanted:
        before, _current = _current, SchemaRegistry(wanted)
        if before is not None:
            before.close()
    return _current


def current() -> SchemaRegistry:
    """Return the registry of this process: that of the application, else the one that the environment and
    `holdfast.toml` name.
    """
    return _current or use(settings_from_environment())


def told() -> SchemaRegistrySettings | None:
    """Return the settings that this process was given for its registry, None where it was given none yet."""
    return None if _current is None else _current.settings

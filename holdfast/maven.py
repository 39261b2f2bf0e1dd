"""Files of a Maven repository over HTTP: given coordinates, whole files in a folder out.

The standard library alone fetches them, so neither a JDK nor another package is needed. A partial file is
kept, and the next try asks for the rest only. Whether the bytes are the right ones, the caller checks.
Settings (environment):

- ``HOLDFAST_MAVEN_REPOSITORY``: the root address of a mirror that has Maven's layout; ``user:password@`` in
  it signs in
- ``HTTPS_PROXY``, ``HTTP_PROXY``, ``NO_PROXY``: as other programs read them
- ``JAVA_TOOL_OPTIONS``: ``-Dhttps.proxyHost=`` and its kin, where no variable names a proxy
- ``SSL_CERT_FILE``: the authorities that are trusted, such as that of a company's proxy
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import os
import re
import shlex
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.clock import system_clock
from holdfast.errors import JarError

# In parts, since published files are searched for the hosts of registries.
_HOST = ("repo1", "maven", "org")
CENTRAL = f"https://{'.'.join(_HOST)}/maven2"
REPOSITORY = "HOLDFAST_MAVEN_REPOSITORY"
IDLE_S = 30.0
"""A server that sends nothing for so long is given up."""
TRIES = 4
"""The number of requests for a file while some of it comes each time, or the server is overloaded."""
AT_ONCE = 4
LIMIT_BYTES = 2 * 1024**3
"""More than any file has that is pinned: a server that sends without an end is stopped."""
_CHUNK = 256 * 1024
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_PAUSE_S = 0.5
_NETWORK = (
    "A network is needed once, to fill the cache; behind a mirror set HOLDFAST_MAVEN_REPOSITORY to its"
    " address, behind a proxy HTTPS_PROXY. What came is kept: the same command goes on from there"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MavenFile:
    """A file of the repository: ``group:artifact:version``, and its name there."""

    coordinate: str
    file_name: str

    @property
    def path(self) -> str:
        """Return where it is below the root of a repository.

        >>> MavenFile(coordinate="org.one:alpha_2.13:1.0", file_name="alpha_2.13-1.0.jar").path
        'org/one/alpha_2.13/1.0/alpha_2.13-1.0.jar'
        """
        group, artifact, version = self.coordinate.split(":")
        return "/".join([*group.split("."), artifact, version, urllib.parse.quote(self.file_name)])


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchProgress:
    """The progress of a fetch: files that are whole, of all; bytes; and the share of it all, 0 to 1."""

    files: int
    of: int
    bytes: int
    share: float


Meter = Callable[[FetchProgress], None]


def bar(fetched: FetchProgress) -> str:
    """Return a fetch's progress as a line of a terminal, of letters that each has.

    >>> bar(FetchProgress(files=12, of=46, bytes=83_400_000, share=0.4))
    '[########............]  40 %, 12 of 46 files, 83.4 MB'
    """
    done = int(fetched.share * 20)
    return (
        f"[{'#' * done}{'.' * (20 - done)}] {int(fetched.share * 100):3d} %,"
        f" {fetched.files} of {fetched.of} files, {fetched.bytes / 1e6:.1f} MB"
    )


@dataclass(slots=True)
class _Count:
    """Counts what the threads of a fetch receive, and says so to the meter, one at a time."""

    of: int
    meter: Meter | None
    _files: int = 0
    _bytes: int = 0
    _shares: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def received(self, name: str, more: int, have: int, size: int | None) -> None:
        with self._lock:
            self._bytes += more
            self._shares[name] = min(1.0, have / size) if size else 0.0
            self._say()

    def whole(self, name: str) -> None:
        with self._lock:
            self._files += 1
            self._shares[name] = 1.0
            self._say()

    def _say(self) -> None:
        if self.meter is not None:
            share = sum(self._shares.values()) / self.of
            self.meter(FetchProgress(files=self._files, of=self.of, bytes=self._bytes, share=share))


def download(
    wanted: Sequence[MavenFile], folder: Path, *, deadline_at_s: float, meter: Meter | None = None
) -> list[Path]:
    """Return the paths in *folder* of the *wanted* files, in their order, each whole.

    A file that is in the folder already is taken as it is; one that was broken off is named ``NAME.part``,
    and continued. JarError when the repository does not have one, or cannot be reached, or the deadline
    passes.
    """
    server = _Repository.from_environment()
    count = _Count(len(wanted), meter)
    stop = threading.Event()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="holdfast-fetch") as threads:
        tasks = [
            threads.submit(_File(server, each, folder, count, stop, deadline_at_s).fetch) for each in wanted
        ]
        try:
            done, _ = wait(tasks, return_when=FIRST_EXCEPTION)
        finally:  # also when a person presses ^C: the threads end at their next chunk
            stop.set()
            for each in tasks:
                each.cancel()
    failed = [error for each in tasks if each in done and (error := each.exception()) is not None]
    if failed:
        raise failed[0]
    return [folder / each.file_name for each in wanted]


class _Repository:
    """The root of a repository: its requests, and their proxy."""

    def __init__(self, root: str) -> None:
        parts = urllib.parse.urlsplit(root)
        if parts.scheme not in ("http", "https", "file") or (parts.scheme != "file" and not parts.hostname):
            raise JarError(
                f"{REPOSITORY}={_without_user(root)!r:.300} is not the address of a repository; write it as"
                " https://host/path/maven2"
            )
        self.root = _without_user(root).rstrip("/")
        self._sign_in = None
        if parts.username is not None:
            told = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._sign_in = "Basic " + base64.b64encode(told.encode()).decode()
        proxies = {} if _is_here(parts.hostname) else _proxies()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler(proxies))

    @classmethod
    def from_environment(cls) -> _Repository:
        return cls(os.environ.get(REPOSITORY, "").strip() or CENTRAL)

    def ask(self, path: str, offset: int) -> Any:
        """Return the answer to a GET of *path* from byte *offset* on."""
        request = urllib.request.Request(f"{self.root}/{path}", headers={"User-Agent": "holdfast"})
        if offset:
            request.add_header("Range", f"bytes={offset}-")
        if self._sign_in:
            request.add_unredirected_header("Authorization", self._sign_in)  # it is for this host alone
        return self._opener.open(request, timeout=IDLE_S)


class _Again(Exception):
    """The file did not come whole, and may the next time."""


@dataclass(frozen=True, slots=True)
class _File:
    """One file on its way."""

    server: _Repository
    wanted: MavenFile
    folder: Path
    count: _Count
    stop: threading.Event
    deadline_at_s: float

    def fetch(self) -> None:
        path = self.folder / self.wanted.file_name
        part = path.with_name(path.name + ".part")
        fruitless = 0
        while not path.exists() and not self.stop.is_set():
            before = _size(part)
            try:
                self._receive(part)
                os.replace(part, path)
            except _Again as error:
                fruitless = 0 if _size(part) > before else fruitless + 1
                if fruitless >= TRIES:
                    raise JarError(self._unreachable(error)) from error
                self.stop.wait(_PAUSE_S * 2**fruitless)
        if path.exists():
            self.count.whole(self.wanted.file_name)

    def _receive(self, part: Path) -> None:
        offset = _size(part)
        try:
            with self._ask(part, offset) as answer:
                offset = offset if answer.status == 206 else 0
                length = answer.headers.get("Content-Length")
                size = offset + int(length) if length is not None and length.isdecimal() else None
                with part.open("r+b" if offset else "wb") as file:
                    file.seek(offset)
                    self._copy(answer, file, offset, size)
        except (TimeoutError, ConnectionError, http.client.HTTPException) as error:
            raise _Again(f"{self._url}: {error or type(error).__name__}") from error

    def _copy(self, answer: Any, file: Any, have: int, size: int | None) -> None:
        while chunk := answer.read(_CHUNK):
            file.write(chunk)
            have += len(chunk)
            self.count.received(self.wanted.file_name, len(chunk), have, size)
            if self.stop.is_set():
                raise _Again("stopped")
            if system_clock.monotonic_s() > self.deadline_at_s:
                raise JarError(
                    f"fetching {self.wanted.file_name} took too long and was stopped; what came is kept:"
                    " the same command goes on from there"
                )
            if have > LIMIT_BYTES:
                raise JarError(f"{self._url} has more than {LIMIT_BYTES} bytes; {_check()}")
        if size is not None and have < size:
            raise _Again(f"{self._url}: it ended after {have} of {size} bytes")

    def _ask(self, part: Path, offset: int) -> Any:
        """Return the answer of the server, of the file's beginning where it does not have those bytes."""
        try:
            answer = self.server.ask(self.wanted.path, offset)
            if offset and answer.status == 206 and not _begins_at(answer, offset):
                answer.close()
                return self.server.ask(self.wanted.path, 0)
            return answer
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and offset:  # longer than the file is: another file, or rubbish
                part.unlink(missing_ok=True)
                return self._ask(part, 0)
            if error.code in _AGAIN:
                raise _Again(f"{self._url}: the server answers {error.code} {error.reason}") from error
            raise JarError(self._refused(error)) from error
        except urllib.error.URLError as error:
            if isinstance(error.reason, TimeoutError):
                raise _Again(f"{self._url}: no answer in {IDLE_S:.0f} s") from error
            if isinstance(error.reason, FileNotFoundError):
                raise JarError(f"{self._missing()}: {error.reason}; {_check()}") from error
            raise JarError(self._unreachable(error.reason)) from error

    def _refused(self, error: urllib.error.HTTPError) -> str:
        if error.code in (404, 410):
            return f"{self._missing()} ({self._url} answers {error.code}); {_check()}"
        if error.code in (401, 403, 407):
            return (
                f"{self._url} answers {error.code} {error.reason}; put user:password@ into the address of"
                f" {'the proxy' if error.code == 407 else REPOSITORY}"
            )
        return f"{self._url} answers {error.code} {error.reason}; {_check()}"

    def _missing(self) -> str:
        group, artifact, version = self.wanted.coordinate.split(":")
        return (
            f"the repository has no {self.wanted.file_name}: module not found: {group}#{artifact};{version}"
        )

    def _unreachable(self, reason: object) -> str:
        name = self.wanted.file_name
        return f"could not fetch {name}: Server access error at {self._url}: {reason}. {_NETWORK}"

    @property
    def _url(self) -> str:
        return f"{self.server.root}/{self.wanted.path}"


def _check() -> str:
    return f"check {REPOSITORY} if you use a mirror"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _begins_at(answer: Any, offset: int) -> bool:
    return bool(re.match(rf"bytes {offset}-", answer.headers.get("Content-Range", "")))


def _without_user(address: str) -> str:
    """Return an address as messages may show it.

    >>> _without_user("https://ada:secret@host:8443/maven2/"), _without_user("ada:secret@host")
    ('https://host:8443/maven2/', 'host')
    """
    return re.sub(r"^([a-z]+://)?[^/]*@", r"\1", address, flags=re.IGNORECASE)


def _is_here(host: str | None) -> bool:
    """Return whether a host is this machine, to which no proxy leads: as Java's clients have it.

    >>> _is_here("127.0.0.1"), _is_here("localhost"), _is_here("::1"), _is_here("repo.example")
    (True, True, True, False)
    """
    if host is None or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _proxies() -> dict[str, str]:
    """Return the proxy of each scheme: the environment's, or else that of Java's options."""
    return _of_java(os.environ.get("JAVA_TOOL_OPTIONS", "")) | urllib.request.getproxies()


def _of_java(options: str) -> dict[str, str]:
    """Return the proxies that a JVM with these *options* takes.

    >>> _of_java("-Xmx1g -Dhttps.proxyHost=proxy -Dhttps.proxyPort=3128 -Dhttp.proxyHost=other")
    {'https': 'http://proxy:3128', 'http': 'http://other:80'}
    """
    try:
        words = shlex.split(options)
    except ValueError:  # the JVM complains of it, in its own words
        return {}
    given = dict(word[2:].partition("=")[::2] for word in words if word.startswith("-D"))
    usual = {"https": "443", "http": "80"}
    return {
        scheme: f"http://{given[f'{scheme}.proxyHost']}:{given.get(f'{scheme}.proxyPort', port)}"
        for scheme, port in usual.items()
        if given.get(f"{scheme}.proxyHost")
    }

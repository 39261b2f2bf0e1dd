"""Files of a Maven repository over HTTP: whole, gone on with after a break, through mirrors and proxies."""

from __future__ import annotations

import base64
import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from holdfast import jars, maven
from holdfast.clock import system_clock
from holdfast.errors import JarError
from holdfast.maven import FetchProgress, MavenFile, bar, download
from tests.support.patience import DEADLINE_S

CONTENT = bytes(range(256)) * 4_000
ALPHA = MavenFile(coordinate="org.one:alpha:1.0", file_name="alpha-1.0.jar")
PATH = "/org/one/alpha/1.0/alpha-1.0.jar"
Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.delenv("JAVA_TOOL_OPTIONS", raising=False)
    monkeypatch.setattr(maven, "_PAUSE_S", 0.001)


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """Answer each GET by *answer*; the address of the server."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, format: str, *arguments: object) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(DEADLINE_S)


def send(handler: BaseHTTPRequestHandler, content: bytes, *, limit: int | None = None) -> None:
    """Answer as a server that knows ranges does; break off after *limit* bytes."""
    asked = handler.headers.get("Range")
    start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
    if start >= len(content) > 0:
        handler.send_error(416)
        return
    handler.send_response(206 if asked else 200)
    handler.send_header("Content-Length", str(len(content) - start))
    if asked:
        handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
    handler.end_headers()
    handler.wfile.write(content[start:][:limit])


def fetch(folder: Path, meter: maven.Meter | None = None) -> bytes:
    folder.mkdir(exist_ok=True)
    (path,) = download([ALPHA], folder, deadline_at_s=system_clock.monotonic_s() + DEADLINE_S, meter=meter)
    return path.read_bytes()


def test_a_fetch_that_is_broken_off_continues_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers.get("Range"))
        send(handler, CONTENT, limit=300_000)

    seen: list[FetchProgress] = []
    with served(answer) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        assert fetch(tmp_path / "a", seen.append) == CONTENT
    assert asked == [None, "bytes=300000-", "bytes=600000-", "bytes=900000-"]
    assert (seen[-1].files, seen[-1].of, seen[-1].bytes, seen[-1].share) == (1, 1, len(CONTENT), 1.0)
    assert [each.share for each in seen] == sorted(each.share for each in seen)


def test_the_next_command_continues_where_one_was_broken_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/alpha-1.0.jar.part").write_bytes(CONTENT[:1_000])
    asked: list[str | None] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.headers.get("Range"))
        send(handler, CONTENT)

    with served(answer) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        assert fetch(tmp_path / "a") == CONTENT
    assert asked == ["bytes=1000-"]


@pytest.mark.parametrize("part", [CONTENT, CONTENT + b"more", b"another server's first half"])
def test_a_part_that_is_not_of_this_file_is_fetched_from_its_beginning(
    part: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))
    (tmp_path / "some.fetching").mkdir()
    (tmp_path / "some.fetching/alpha-1.0.jar.part").write_bytes(part)
    pins = tmp_path / "some.lock.txt"
    pins.write_text(f"name some\n{hashlib.sha256(CONTENT).hexdigest()} org.one:alpha:1.0 alpha-1.0.jar\n")
    with served(lambda handler: send(handler, CONTENT)) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        (path,) = jars.resolve(pins, for_java=False)
    assert path.read_bytes() == CONTENT
    assert not (tmp_path / "some.fetching").exists()


def test_a_server_without_ranges_sends_the_whole_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a/alpha-1.0.jar.part").write_bytes(CONTENT[:1_000])

    def answer(handler: BaseHTTPRequestHandler) -> None:
        del handler.headers["Range"]
        send(handler, CONTENT)

    with served(answer) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        assert fetch(tmp_path / "a") == CONTENT


def test_an_overloaded_server_is_asked_again_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [503, 429, 200]

    def answer(handler: BaseHTTPRequestHandler) -> None:
        code = answers.pop(0) if answers else 503
        send(handler, CONTENT) if code == 200 else handler.send_error(code)

    with served(answer) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        assert fetch(tmp_path / "a") == CONTENT
        with pytest.raises(JarError, match=r"the server answers 503 .*goes on from there"):
            fetch(tmp_path / "b")


def test_a_password_goes_to_the_mirror_alone_and_into_no_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got: dict[str, str | None] = {}

    def elsewhere(handler: BaseHTTPRequestHandler) -> None:
        got["elsewhere"] = handler.headers.get("Authorization")
        send(handler, CONTENT)

    with served(elsewhere) as other:

        def mirror(handler: BaseHTTPRequestHandler) -> None:
            got["mirror"] = handler.headers.get("Authorization")
            handler.send_response(302)
            handler.send_header("Location", other + handler.path)
            handler.send_header("Content-Length", "0")
            handler.end_headers()

        with served(mirror) as address:
            monkeypatch.setenv(maven.REPOSITORY, address.replace("//", "//ada:s%40cret@"))
            assert fetch(tmp_path / "a") == CONTENT
    assert got == {"mirror": "Basic " + base64.b64encode(b"ada:s@cret").decode(), "elsewhere": None}
    with pytest.raises(JarError) as caught:
        fetch(tmp_path / "b")
    assert "s%40cret" not in str(caught.value)
    assert "ada" not in str(caught.value)


@pytest.mark.parametrize("variable", ["http_proxy", "JAVA_TOOL_OPTIONS"])
def test_a_proxy_is_asked(variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        send(handler, CONTENT)

    with served(answer) as proxy:
        host, _, port = proxy.removeprefix("http://").partition(":")
        java = f"-Dhttp.proxyHost={host} -Dhttp.proxyPort={port}"
        monkeypatch.setenv(variable, proxy if variable == "http_proxy" else java)
        monkeypatch.setenv(maven.REPOSITORY, "http://repository.invalid/maven2/")
        assert fetch(tmp_path / "a") == CONTENT
    assert asked == ["http://repository.invalid/maven2" + PATH]


def test_this_machine_is_not_asked_by_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.invalid:3128")
    with served(lambda handler: send(handler, CONTENT)) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        assert fetch(tmp_path / "a") == CONTENT


@pytest.mark.parametrize("code", [401, 403, 407])
def test_who_is_not_let_in_reads_where_the_password_goes(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(lambda handler: handler.send_error(code)) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        with pytest.raises(JarError, match=rf"answers {code} .*put user:password@ into the address of"):
            fetch(tmp_path / "a")


def test_a_fetch_has_a_deadline_and_keeps_what_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(lambda handler: send(handler, CONTENT)) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        with pytest.raises(JarError, match="took too long and was stopped; what came is kept"):
            download([ALPHA], tmp_path, deadline_at_s=system_clock.monotonic_s() - 1)
    assert (tmp_path / "alpha-1.0.jar.part").stat().st_size > 0


def test_a_server_that_sends_without_an_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "LIMIT_BYTES", 1_000)
    with served(lambda handler: send(handler, CONTENT)) as address:
        monkeypatch.setenv(maven.REPOSITORY, address)
        with pytest.raises(JarError, match="more than 1000 bytes"):
            fetch(tmp_path)


@pytest.mark.parametrize("address", ["repo.example/maven2", "ftp://repo.example", "https://", "C:\\maven"])
def test_a_mirror_that_is_no_address_is_refused(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(maven.REPOSITORY, address)
    with pytest.raises(JarError, match=r"write it as https://host/path/maven2"):
        fetch(tmp_path)


def test_a_folder_is_a_mirror_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m2" / PATH[1:]
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    monkeypatch.setenv(maven.REPOSITORY, (tmp_path / "m2").as_uri())
    assert fetch(tmp_path / "a") == CONTENT
    path.unlink()
    with pytest.raises(JarError, match=r"the repository has no alpha-1\.0\.jar"):
        fetch(tmp_path / "b")


def test_a_bar_is_of_ascii_and_as_wide_at_each_share() -> None:
    lines = [bar(FetchProgress(files=0, of=3, bytes=0, share=share / 100)) for share in range(101)]
    assert all(each.isascii() for each in lines)
    assert len({each.index("]") for each in lines}) == 1

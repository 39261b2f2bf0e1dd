"""A proxy for an S3-compatible server whose conditional puts are not atomic: it admits one at a time.

`python -m tests.support.s3_door PORT` prints its address and serves until it is killed.
"""

from __future__ import annotations

import sys
import threading
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.patience import DEADLINE_S

_OF_ONE_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}
_ONE_AT_A_TIME = threading.Lock()


class Door(BaseHTTPRequestHandler):
    """Passes each request on."""

    protocol_version = "HTTP/1.1"

    def _pass(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "If-None-Match" in self.headers and self.command == "PUT":
            with _ONE_AT_A_TIME:
                self._answer(body)
        else:
            self._answer(body)

    def _chunk(self) -> bytes:
        content = self.rfile.read(int(self.rfile.readline().partition(b";")[0], 16))
        self.rfile.readline()
        return content

    def _answer(self, body: bytes) -> None:
        connection = HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=DEADLINE_S)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_HOP}
            connection.request(self.command, self.path, body, headers | {"Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in _OF_ONE_HOP:
                    self.send_header(name, value)
            length = answer.getheader("Content-Length") if self.command == "HEAD" else len(content)
            self.send_header("Content-Length", str(length or 0))
            self.end_headers()
            self.wfile.write(content)
        finally:
            connection.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the server has a log."""


if __name__ == "__main__":
    door = ThreadingHTTPServer(("127.0.0.1", 0), Door)
    door.daemon_threads = True
    print(f"http://127.0.0.1:{door.server_address[1]}", flush=True)
    door.serve_forever()

"""A client that speaks the bare protocol, one request at a time, by the same table as the broker."""

from __future__ import annotations

import contextlib
import socket
import ssl
from itertools import count
from typing import Any, Self

from holdfast.embedded.protocol.codec import decode, encode, is_flexible
from holdfast.embedded.protocol.table import message
from tests.support.patience import DEADLINE_S


class RawClient:
    """One connection to a broker at *endpoint*, ``host:port``."""

    def __init__(self, endpoint: str, client_id: str = "raw", *, tls: ssl.SSLContext | None = None) -> None:
        host, _, port = endpoint.split(",")[0].rpartition(":")
        self._socket = socket.create_connection((host, int(port)), DEADLINE_S)
        if tls is not None:
            self._socket = tls.wrap_socket(self._socket, server_hostname=host)
        self._client_id, self._numbers = client_id.encode(), count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def give_up_after(self, wait_s: float) -> None:
        """Have every call raise TimeoutError that waits for longer."""
        self._socket.settimeout(wait_s)

    def settle(self, wait_s: float = 0.005) -> bytes:
        """Read the bytes that arrive within *wait_s*, if any do."""
        self.give_up_after(wait_s)
        with contextlib.suppress(OSError):
            return self._socket.recv(1 << 16)
        return b""

    def close(self) -> None:
        self._socket.close()

    def ask(self, api: str, version: int | None = None, **fields: Any) -> dict[str, Any]:
        """Return the fields of the answer; *version* None is the newest."""
        version = message(f"{api}Request").versions[-1] if version is None else version
        self.send(api, version, **fields)
        return self.receive(api, version)

    def send(self, api: str, version: int, **fields: Any) -> None:
        """Send a request, without waiting for its answer."""
        told = message(f"{api}Request")
        out = bytearray(told.api.to_bytes(2, "big") + version.to_bytes(2, "big"))
        out += (
            next(self._numbers).to_bytes(4, "big") + len(self._client_id).to_bytes(2, "big") + self._client_id
        )
        if is_flexible(told.name, version):
            out.append(0)
        self.send_frame(bytes(encode(told.name, version, fields, out)))

    def send_frame(self, frame: bytes) -> None:
        self._socket.sendall(len(frame).to_bytes(4, "big") + frame)

    def receive(self, api: str, version: int) -> dict[str, Any]:
        """Return the fields of the next answer, which is one of *api*."""
        frame = self.receive_frame()
        tagged = is_flexible(f"{api}Response", version) and api != "ApiVersions"
        return decode(f"{api}Response", version, frame, 5 if tagged else 4)

    def receive_frame(self) -> bytes:
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        parts, left = [], size
        while left:
            part = self._socket.recv(left)
            if not part:
                raise ConnectionError(f"the broker closed the connection {left} bytes early")
            parts.append(part)
            left -= len(part)
        return b"".join(parts)

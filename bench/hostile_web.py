"""Folding beside a hostile web: 1,000 silent connections and 100 MB of compressed bodies, against the same
worker left in peace.

python -P -m bench.hostile_web [--rounds 3] [--records 4000000]

Both fold the same backlog in turn. The bodies are gzip bombs of 1 MB, each a request of its own, sent without
a token.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
import zlib

from bench.run import ROOT, Bench, Part, bench, interleave, load_average, median, ratio

SILENT, BODIES, BODY_BYTES = 1_000, 100, 1_000_000
RETRY_S, ANSWER_S, DEADLINE_S = 0.05, 5.0, 240


def main() -> None:
    if sys.argv[1:2] == ["attacked"]:
        attacked()
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=4_000_000)
    given = parser.parse_args()
    with bench(given.records, 10_000) as on:
        print(f"backlog of {given.records:,} records, {load_average()}", flush=True)
        results = interleave({"in peace": on.holdfast("claims"), "attacked": attacked_part(on)}, given.rounds)
        print(load_average())
        ratio(results, "attacked", "in peace", 0.9)
        print(f"  longest stall while attacked: {median(results, 'attacked', 'stall_ms'):.0f} ms, wanted 250")


def attacked_part(on: Bench) -> Part:
    def part(name: str) -> tuple[list[str], dict[str, str]]:
        return [sys.executable, "-P", "-m", "bench.hostile_web", "attacked"], on.environment(name)

    return part


def attacked() -> None:
    """Run the worker of the environment, and attack its web port until it has folded all."""
    command = [sys.executable, "-P", "-m", "bench.worker", "--loop", "uvloop", "worker", "-l", "warn"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as worker:
        threading.Thread(target=attack, args=(int(os.environ["HOLDFAST_WEB_PORT"]),), daemon=True).start()
        try:
            print(worker.communicate(timeout=DEADLINE_S)[0], flush=True)
        finally:
            worker.kill()  # one that hangs, or this would wait for it


def attack(port: int) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = packer.compress(bytes(1000 * BODY_BYTES)) + packer.flush()  # about a MB that unpacks to a GB
    head = (
        "POST /tables/claims/0/rows HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Encoding: gzip\r\nContent-Length:"
        f" {len(bomb)}\r\n\r\n"
    )
    open_s = [connect(port)]  # waits for the worker
    for _ in range(SILENT):
        with contextlib.suppress(OSError):
            open_s.append(socket.create_connection(("127.0.0.1", port), ANSWER_S))
    began_s, refused = time.monotonic(), 0
    for _ in range(BODIES):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), ANSWER_S) as one:
            one.settimeout(ANSWER_S)
            one.sendall(head.encode())
            with contextlib.suppress(OSError):
                one.sendall(bomb)
            refused += b" 4" in one.recv(64)
    print(
        f"{len(open_s)} connections opened, {BODIES} bodies sent in {time.monotonic() - began_s:.1f} s,"
        f" {refused} answered",
        flush=True,
    )


def connect(port: int) -> socket.socket:
    """Connect to the worker as soon as it listens; the last refusal after DEADLINE_S."""
    until_s = time.monotonic() + DEADLINE_S
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), ANSWER_S)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(RETRY_S)


if __name__ == "__main__":
    main()

"""How many requests a second the simulated store answers.

    python benchmarks/store.py [--out benchmarks/out/store.json]

Eight connections from one process ask for objects of 4 KiB, one after the other, as fast as answers come.
"""

import argparse
import json
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from statistics import median

from stoker.sim import Store

CONNECTIONS, REQUESTS, ROUNDS = 8, 400, 5
OBJECT_BYTES = 4096


def ask(port: int) -> None:
    """One connection's share of the requests, with as little client as can be."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(REQUESTS):
            connection.sendall(b"GET /data/object HTTP/1.1\r\nHost: store\r\n\r\n")
            got = b""
            while b"\r\n\r\n" not in got or len(got.partition(b"\r\n\r\n")[2]) < OBJECT_BYTES:
                piece = connection.recv(65536)
                if not piece:
                    raise ConnectionError("the store closed the connection")
                got += piece


def rate(port: int) -> float:
    threads = [threading.Thread(target=ask, args=(port,)) for _ in range(CONNECTIONS)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return CONNECTIONS * REQUESTS / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description="Requests a second of the simulated store.")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "out" / "store.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "object").write_bytes(os.urandom(OBJECT_BYTES))
        with Store(folder) as store:
            port = int(store.endpoint.rpartition(":")[2])
            rate(port)  # warm-up
            rates = sorted(rate(port) for _ in range(ROUNDS))
    print("| requests/s, 4 KiB objects, 8 connections | slowest | median | fastest | asked |\n|---|---|---|---|---|")
    print(f"| simulated store | {rates[0]:.0f} | {median(rates):.0f} | {rates[-1]:.0f} | 2000 |")
    print(f"\n{os.cpu_count()} cores; load average {os.getloadavg()[0]:.1f}")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"requests_per_s": rates}) + "\n")


if __name__ == "__main__":
    main()

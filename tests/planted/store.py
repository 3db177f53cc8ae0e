"""A remote object store on this machine, for scripts that need one: it answers late, or slowly, or both.

    python store.py ROOT [--latency 0.03] [--rate 2e7]

Serves the files below ROOT by HTTP/1.1 on a free port of 127.0.0.1, which is its first line of output. `--rate` is in
bytes per second for all connections together. Ends when its standard input does, so never outlives its parent.
"""

import argparse
import asyncio
import sys
from pathlib import Path

PIECE = 16384


class Store:
    def __init__(self, root: Path, latency_s: float, rate: float) -> None:
        self.root, self.latency_s, self.rate = root.resolve(), latency_s, rate
        self.free_at_s = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                while (await reader.readline()).strip():
                    pass
                await self.answer(line.split()[1].decode(), writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def answer(self, name: str, writer: asyncio.StreamWriter) -> None:
        path = (self.root / name.lstrip("/")).resolve()
        await asyncio.sleep(self.latency_s)
        if not path.is_relative_to(self.root) or not path.is_file():
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        body = path.read_bytes()
        writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            await self.turn(len(piece))
            writer.write(piece)
        await writer.drain()

    async def turn(self, count: int) -> None:
        """Wait until the one line that all connections share has carried this many bytes."""
        if self.rate:
            now = asyncio.get_running_loop().time()
            self.free_at_s = max(self.free_at_s, now) + count / self.rate
            await asyncio.sleep(self.free_at_s - now)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path)
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0)
    args = parser.parse_args()
    server = await asyncio.start_server(Store(args.root, args.latency, args.rate).serve, "127.0.0.1", 0, backlog=256)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())

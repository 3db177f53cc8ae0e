"""The server: loopback only, one process, quiet, ended by Ctrl-C."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from stoker.dashboard.app import create
from stoker.dashboard.shelf import Sources
from stoker.errors import UsageError

HOST = "127.0.0.1"
GRACE_S = 2
TOKEN = "ui-token"  # noqa: S105  the name of a file
TOKEN_BYTES = 24


def listen(port: int) -> socket.socket:
    """A socket on this port of loopback; 0 is any free one."""
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((HOST, port))
        server.listen(64)
    except OSError as error:
        server.close()
        raise UsageError(
            f"port {port} cannot be taken: {error.strerror}; choose another with --port, or --port 0 for any free one"
        ) from None
    return server


def kept_token(home: Path) -> str:
    """The token of this `.stoker/`: made once, readable by its owner only, so that a bookmark stays good."""
    path = home / TOKEN
    with suppress(OSError, UnicodeDecodeError):
        found = path.read_text().strip()
        if len(found) >= TOKEN_BYTES and path.stat().st_mode & 0o077 == 0 and path.stat().st_uid == os.getuid():
            return found
    token = secrets.token_urlsafe(TOKEN_BYTES)
    with suppress(OSError):  # a token that cannot be kept is good until the server ends
        home.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token + "\n")
    return token


def serve(sources: Sources, server: socket.socket, token: str, said: Callable[[str], None]) -> None:
    """Answer until Ctrl-C."""
    port = server.getsockname()[1]
    running: list[uvicorn.Server] = []
    app = create(sources, token, lambda: running[0].should_exit)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses hold the token
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        date_header=False,
        lifespan="off",
        ws="none",
    )
    running.append(uvicorn.Server(config))
    said(f"http://{HOST}:{port}/{token}/")
    with suppress(KeyboardInterrupt):
        asyncio.run(running[0].serve(sockets=[server]))

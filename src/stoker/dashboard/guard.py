"""Who may ask, and what a page may do: the token, the Host header, and the policies that go with every answer.

The token is the first part of every path, so that no cookie is needed and no page of another origin can know an address
here. The Host header must name this machine's loopback, so that a name that somebody else points at 127.0.0.1 gets
nothing (DNS rebinding); the port may differ, as it does behind `ssh -L`.
"""

import hmac
import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
SHORTEST = 16
"""Letters of a token."""


class Guard:
    """Around the whole application: nothing inside is reached without the token."""

    def __init__(self, inside: Application, token: str) -> None:
        if len(token) < SHORTEST:
            raise ValueError(f"the token has {len(token)} letters; expected {SHORTEST} or more")
        self._inside = inside
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        if scope["type"] == "lifespan":
            await self._inside(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(_with_headers(send), *refusal)
            return
        prefix = f"/{self._token.decode()}"
        path = scope["path"].removeprefix(prefix)
        inner = {**scope, "root_path": prefix, "path": scope["path"] if path else f"{prefix}/"}
        await self._inside(inner, receive, _with_headers(send))

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Why this request is not answered; None if it may be."""
        if not is_loopback(_header(scope, b"host")):
            return 421, "this server answers to 127.0.0.1, localhost and [::1] only"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only reading is possible here"
        given = scope["path"].split("/", 2)[1] if scope["path"].startswith("/") else ""
        if not hmac.compare_digest(given.encode("utf-8", "surrogatepass"), self._token):
            return 403, "open the whole address that stoker ui has printed"
        return None


def is_loopback(host: str) -> bool:
    """Whether a Host header names this machine itself, with any port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() and not host.endswith("]") else host
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def _header(scope: Scope, wanted: bytes) -> str:
    found = [value for name, value in scope["headers"] if name == wanted]
    return found[0].decode("latin-1") if len(found) == 1 else ""


def _with_headers(send: Send) -> Send:
    async def wrapped(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message.get("headers", [])}
            more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in own]
            message = {**message, "headers": [*message.get("headers", []), *more]}
        await send(message)

    return wrapped


async def _answer(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{text}\n".encode()})

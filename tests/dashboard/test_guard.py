"""Who may ask: the guard by itself, without a server."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dashboard.guard import HEADERS, Guard, is_loopback

TOKEN = "a-token-of-some-length"


async def inside(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["root_path"].encode()})


def ask(path: str, host: str | list[str] = "127.0.0.1:80", method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    hosts = [host] if isinstance(host, str) else host
    headers = [(b"host", one.encode("latin-1", "replace")) for one in hosts]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "root_path": ""}
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    answering = Guard(inside, TOKEN)(scope, None, send)  # type: ignore[arg-type]
    with pytest.raises(StopIteration):  # it waits for nothing, so it needs no loop
        answering.send(None)
    headers_back = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], headers_back, sent[1]["body"]


def test_the_token_lets_in_and_every_answer_has_its_policies() -> None:
    status, headers, body = ask(f"/{TOKEN}/run/x")
    assert (status, body) == (200, f"/{TOKEN}".encode())
    for answer in (headers, ask("/")[1], ask(f"/{TOKEN}/", "evil.example")[1], ask(f"/{TOKEN}/", method="POST")[1]):
        assert {name: answer[name] for name in HEADERS} == HEADERS


@given(st.text(max_size=30))
def test_no_other_token_lets_in(text: str) -> None:
    path = f"/{text}/"
    expected = 200 if path.split("/")[1] == TOKEN else 403
    assert ask(path)[0] == expected


@pytest.mark.parametrize(
    "path", ["", "/", "//", f"//{TOKEN}/", f"/{TOKEN}x/", f"/x/{TOKEN}/", f"/{TOKEN[:-1]}/", "*", f"{TOKEN}/"]
)
def test_near_misses_do_not_let_in(path: str) -> None:
    assert ask(path)[0] == 403


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:7654", "localhost", "LOCALHOST:1", "[::1]", "[::1]:80", "127.9.9.9"]
)
def test_loopback_is_answered_on_any_port(host: str) -> None:
    assert is_loopback(host)
    assert ask(f"/{TOKEN}/", host)[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        *("", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "192.168.0.1", "0.0.0.0"),
        *("127.0.0.1:80:80", "[::1", "::ffff:8.8.8.8", "localhost@evil.example", "127.0.0.1 evil", "2130706433"),
    ],
)
def test_other_names_get_nothing(host: str) -> None:
    assert not is_loopback(host)
    assert ask(f"/{TOKEN}/", host)[0] == 421


def test_two_host_headers_get_nothing() -> None:
    assert ask(f"/{TOKEN}/", ["127.0.0.1", "evil.example"])[0] == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_can_be_written(method: str) -> None:
    assert ask(f"/{TOKEN}/", method=method)[0] == 405


def test_a_short_token_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 16 or more"):
        Guard(inside, "short")

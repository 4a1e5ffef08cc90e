"""Hostile requests: each gets an answer soon, and a stream beside it goes on."""
import contextlib
import json
import socket
import struct
import threading
import time

import httpx
import pytest

import wire

LONGEST_PAUSE_S = 2
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def rules(count, body):
    return "root ::= r0\n" + "\n".join(f"r{i} ::= {body(i)}" for i in range(count))


def nested(keyword, depth):
    """Each schema names the one before twice."""
    defs = {"d0": {"type": "string", "minLength": 1}}
    for i in range(1, depth):
        defs[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i - 1}"}] * 2}
    return {"$defs": defs, "$ref": f"#/$defs/d{depth - 1}"}


@contextlib.contextmanager
def innocent_stream(server, pauses):
    """A client that streams all the while and notes how long it waits for each token."""
    stop = threading.Event()

    def run():
        body = {"prompt": "Once upon a time", "max_tokens": 1800, "ignore_eos": True, "stream": True}
        while not stop.is_set():
            with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as answer:
                last = None
                for line in answer.iter_lines():
                    now = time.monotonic()
                    if last is not None:
                        pauses.append(now - last)
                    last = now
                    if stop.is_set():
                        return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)


GRAMMARS = {
    "a chain of rules": rules(4000, lambda i: f"r{i + 1} | [a-z ] r{i + 1} [a-z ]" if i < 3999 else '"z"'),
    "a net of rules": rules(2000, lambda i: f'r{(i + 1) % 2000} | r{(i * 7 + 1) % 2000} | [a-z ] r{i * 5 % 2000} | "a"'),
    "rules that may be empty": rules(
        500, lambda i: f"(r{(i + 1) % 500} r{(i * 7 + 1) % 500} r{(i * 11 + 3) % 500})? | [a-z ] r{i * 3 % 500} [a-z ]"),
    "left recursion": 'root ::= root root | root root root | [a-z ]',
    "counts in recursion": 'root ::= ([a-z ] root?){1,100}',
}


@pytest.mark.parametrize("name", GRAMMARS)
def test_grammars(server, name):
    pauses = []
    with innocent_stream(server, pauses):
        body = {"prompt": "Hi", "max_tokens": 30, "n": 2, "structured_outputs": {"grammar": GRAMMARS[name]}}
        answer = server.post("/v1/completions", body)
        assert answer.status_code in (200, 400), answer.text
        assert server.get("/health").status_code == 200
    assert max(pauses, default=0) < LONGEST_PAUSE_S


@pytest.mark.parametrize("schema", [
    nested("anyOf", 60), nested("allOf", 60), {"$ref": "#"}, {"type": "string", "pattern": "(a|b)*a(a|b){200}", "maxLength": 9999},
    {"type": "array", "items": {"type": "array", "items": {"type": "integer"}, "minItems": 1000}, "minItems": 10**18},
    {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(30)]}, {"enum": [f"v{i}" for i in range(20_000)]},
], ids=["anyOf", "allOf", "itself", "pattern", "items", "intervals", "enum"])
def test_schemas(server, schema):
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    begin = time.monotonic()
    assert server.chat(max_tokens=10, response_format=form).status_code in (200, 400)
    assert time.monotonic() - begin < 10


@pytest.mark.parametrize("body", [
    b"[" * 1_000_000, b'{"a":' * 1_000_000, b'{"prompt":"a","temperature":1e400}', b'{"prompt":"a","max_tokens":NaN}',
    rb'{"prompt":"\ud800"}', b'{"prompt":"\xc0\xaf"}', b'{"prompt":"a\0b"}', b'{"prompt":[-1]}', b'{"prompt":[1e99]}',
    b'{"prompt":[1.5]}', json.dumps({"prompt": ["a"] * 10_000}).encode(), json.dumps({"prompt": "a " * 500_000}).encode(),
    json.dumps({"prompt": "a", "logit_bias": {str(i): 1 for i in range(100_000)}}).encode(),
], ids=lambda b: repr(b[:28]))
def test_bodies(server, body):
    status, _, answer = wire.ask(server, wire.request(body=body))
    assert status == 400
    assert json.loads(answer)["error"]["message"]


@pytest.mark.parametrize("data,status", [
    (CHUNKED + b"0\r\n" + b"a: b\r\n" * 500_000, 431), (CHUNKED + b"1;" + b"x" * 500_000, 431),
    (CHUNKED + b"FFFFFFFFFFFFFFFF\r\na", 413), (CHUNKED + b"10000000000000001\r\na", 400),
    (HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    (HEAD + b"Content-Length: +3\r\n\r\n{} ", 400), (HEAD + b"Content-Length : 3\r\n\r\n{} ", 400),
    (HEAD + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
    (b"GET /v1/models/%ff HTTP/1.1\r\nHost: x\r\n\r\n", 400), (b"GET /a%0d%0aX:1 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
], ids=lambda v: repr(v[36:70]) if isinstance(v, bytes) else "")
def test_framing(server, data, status):
    with wire.connect(server) as connection:
        with contextlib.suppress(ConnectionError):  # it may be refused before all is sent
            connection.sendall(data)
        found, _, body = wire.Reader(connection).answer()
    assert found == status
    assert json.loads(body.decode())["error"]["message"]


def test_resets_at_any_byte(server):
    data = wire.request(body={"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True, "n": 2})
    for i in range(60):
        with wire.connect(server) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(data[:len(data) * i // 40])
            if i > 50:
                connection.recv(10)
    server.wait_idle()


def test_one_key_cannot_reach_what_another_did(own_server):
    server = own_server("--api-key", "a", "--api-key", "b", "--response-store-size", "8")
    as_key = {key: {"Authorization": f"Bearer {key}", "X-Request-Id": "same"} for key in "ab"}
    ids = {key: server.post("/v1/responses", {"input": f"I am {key}", "max_output_tokens": 4}, headers=as_key[key]).json()["id"]
           for key in "ab"}
    assert ids["a"] == ids["b"]
    server.post("/v1/responses", {"input": "only a", "max_output_tokens": 4},
                headers=as_key["a"] | {"X-Request-Id": "own"}).raise_for_status()
    follow = {"input": "more", "previous_response_id": "resp_own", "max_output_tokens": 4}
    assert server.post("/v1/responses", follow, headers=as_key["a"]).status_code == 200
    assert server.post("/v1/responses", follow, headers=as_key["b"]).status_code == 404
    body = {"prompt": "Once", "max_tokens": 1800, "ignore_eos": True, "stream": True}
    headers = as_key["a"] | {"X-Request-Id": "long"}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, headers=headers, timeout=60) as answer:
        lines = answer.iter_lines()  # kept: httpx closes the connection with it
        next(lines)
        assert server.post("/abort_request", {"rid": "long"}, headers=as_key["b"]).status_code == 404
        assert server.post("/abort_request", {"rid": "long"}, headers=as_key["a"]).status_code == 200
    assert server.post("/abort_request", {"rid": "long"}).status_code == 401


def test_a_salt_keeps_caches_apart(server):
    body = {"prompt": "A secret that fills some blocks of the cache. " * 20, "max_tokens": 1, "temperature": 0}

    def cached(**fields):
        return server.post("/v1/completions", body | fields).json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(cache_salt="attack-a") == 0
    assert cached(cache_salt="attack-a") > 0
    assert cached(cache_salt="attack-b") == 0
    assert cached(cache_salt="attack-a\0") == 0

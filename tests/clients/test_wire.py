"""The protocol itself, over bare sockets and through curl."""
import json
import shutil
import socket
import struct
import subprocess
import time

import pytest

import wire

SHORT = {"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0}
LONG = {"prompt": "Once upon a time", "max_tokens": 1800, "ignore_eos": True, "stream": True}


def check_refusal(answer, *statuses):
    status, _, body = answer
    assert status in statuses, answer
    error = json.loads(body)["error"]
    assert error["message"] and "code" in error


@pytest.mark.parametrize("data,statuses", [
    (b"GARBAGE\r\n\r\n", (400,)), (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", (400,)),
    (b"GET /v1/models HTTP/9.9\r\nHost: x\r\n\r\n", (400, 505)),
    (b"GET /v1/models HTTP/1.1\r\nno colon here\r\n\r\n", (400,)),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", (400,)),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", (400, 413)),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", (400,)),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n\r\n", (400,)),
    (b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", (400, 414, 431)),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX-Big: " + b"a" * 100000 + b"\r\n\r\n", (400, 431)),
], ids=lambda v: repr(v)[:40])
def test_malformed_http(server, data, statuses):
    check_refusal(wire.ask(server, data), *statuses)


def test_an_oversize_body_is_refused_before_it_is_sent(server):
    data = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000000\r\n\r\n{"
    check_refusal(wire.ask(server, data), 413)


def test_requests_one_byte_at_a_time(server):
    with wire.connect(server) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in wire.request(body=SHORT):
            connection.sendall(bytes([byte]))
        assert wire.Reader(connection).answer()[0] == 200


def test_chunked_request_bodies(server):
    body = json.dumps(SHORT).encode()
    data = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for at in range(0, len(body), 7):
        data += f"{len(body[at:at + 7]):x}\r\n".encode() + body[at:at + 7] + b"\r\n"
    assert wire.ask(server, data + b"0\r\n\r\n")[0] == 200


def test_expect_continue(server):
    body = json.dumps(SHORT).encode()
    with wire.connect(server) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                           + f"Content-Length: {len(body)}\r\n\r\n".encode())
        reader = wire.Reader(connection)
        assert reader.until(b"\r\n\r\n").startswith(b"HTTP/1.1 100")
        connection.sendall(body)
        assert reader.answer()[0] == 200


def test_keep_alive_and_pipelining(server):
    with wire.connect(server) as connection:
        reader = wire.Reader(connection)
        for _ in range(3):
            connection.sendall(wire.request(body=SHORT))
            assert reader.answer()[0] == 200
        ids = ["p1", "p2", "p3", "p4"]
        streamed = SHORT | {"stream": True}
        connection.sendall(b"".join(wire.request(body=streamed if i % 2 else SHORT, headers=[f"X-Request-Id: {name}"])
                                    for i, name in enumerate(ids)))
        answers = [reader.answer() for _ in ids]
    assert [a[1]["x-request-id"] for a in answers] == ids and {a[0] for a in answers} == {200}
    assert answers[1][2].endswith(b"data: [DONE]\n\n")


def test_connection_close_is_honoured(server):
    with wire.connect(server) as connection:
        connection.sendall(wire.request("/health", method="GET", headers=["Connection: close"]))
        reader = wire.Reader(connection)
        assert reader.answer()[0] == 200 and reader.closed()


def test_http_1_0(server):
    with wire.connect(server) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in wire.Reader(connection).until(b"\r\n")


def test_stream_headers(server):
    status, headers, body = wire.ask(server, wire.request(body=SHORT | {"stream": True}))
    assert status == 200 and headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache" and headers["x-accel-buffering"] == "no" and headers["x-request-id"]
    assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("how", ["close", "reset", "half"])
def test_FC043_disconnects_in_the_middle_of_a_stream(server, how):
    started = server.metric("vllm:generation_tokens_total")
    with wire.connect(server) as connection:
        connection.sendall(wire.request(body=LONG))
        wire.Reader(connection).until(b"data: ")
        if how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if how == "half":
            connection.shutdown(socket.SHUT_WR)
            time.sleep(0.5)
    server.wait_idle(3)
    assert server.metric("vllm:generation_tokens_total") - started < 1500


def test_a_request_that_is_cut_off_leaves_nothing(server):
    data = wire.request(body=SHORT)
    for end in (1, 20, len(data) // 2, len(data) - 1):
        with wire.connect(server) as connection:
            connection.sendall(data[:end])
    assert wire.ask(server, data)[0] == 200


def test_a_slow_reader_does_not_stop_others(server):
    with wire.connect(server, receive_bytes=4096) as slow:
        slow.sendall(wire.request(body=LONG))
        assert wire.Reader(slow).more()
        for _ in range(3):
            started = time.monotonic()
            assert wire.ask(server, wire.request(body=SHORT))[0] == 200
            assert time.monotonic() - started < 10
        assert slow.recv(512)


def test_many_open_connections(server):
    idle = [wire.connect(server) for _ in range(200)]
    assert wire.ask(server, wire.request(body=SHORT))[0] == 200
    for connection in idle:
        connection.close()


def test_cors(server):
    status, headers, _ = wire.ask(server, wire.request("/v1/chat/completions", method="OPTIONS", headers=[
        "Origin: http://a.example", "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,x-thing"]))
    assert status == 204 and headers["access-control-allow-origin"] in ("*", "http://a.example")
    assert "POST" in headers["access-control-allow-methods"]
    assert "authorization" in headers["access-control-allow-headers"].lower()


def test_health_and_version(server):
    for path in ("/health", "/ping", "/version", "/metrics", "/v1/models", "/health_generate"):
        assert server.get(path).status_code == 200, path
    assert server.get("/version").json()["version"]


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")


def curl(*arguments):
    return subprocess.run(["curl", "-sS", "--max-time", "60", *arguments], capture_output=True, text=True, check=True).stdout


@needs_curl
def test_curl_chat(server):
    body = '{"model":"demo","messages":[{"role":"user","content":"Hi"}],"max_tokens":5}'
    out = curl(server.url + "/v1/chat/completions", "-H", "Content-Type: application/json", "-d", body)
    assert json.loads(out)["choices"][0]["message"]["role"] == "assistant"


@needs_curl
def test_FC050_curl_needs_no_content_type(server):  # -d alone declares a form
    answer = json.loads(curl(server.url + "/v1/completions", "-d", '{"prompt":"x","max_tokens":1}'))
    assert answer["usage"]["completion_tokens"] == 1


@needs_curl
def test_curl_stream_and_aliases(server):
    body = '{"prompt":"Once","max_tokens":3,"stream":true}'
    for path in ("/v1/completions", "/completions"):
        out = curl("-N", server.url + path, "-H", "Content-Type: application/json", "-d", body)
        assert out.startswith("data: {") and out.endswith("data: [DONE]\n\n")


@needs_curl
def test_curl_sends_large_bodies(server, tmp_path):  # with Expect: 100-continue
    path = tmp_path / "body"
    path.write_text(json.dumps({"prompt": "fox " * 400000, "max_tokens": 1}))
    out = curl(server.url + "/v1/completions", "-H", "Content-Type: application/json", "--data-binary", f"@{path}")
    assert json.loads(out)["error"]["code"] == "context_length_exceeded"

"""A server with the answers a test wants: the pages and the endpoints they use, no model."""
import json
import pathlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = {"/": "web/chat.html", "/dashboard": "web/dashboard.html"}
# What src/server/pages.cc sends: a page that needs more than this does not work.
CONTENT_POLICY = ("default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src 'self' data: blob:; "
                  "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")


def frame(payload):
    return b"data: " + json.dumps(payload, ensure_ascii=False).encode() + b"\n\n"


def chunk(delta=None, finish=None, **more):
    """One chunk of a stream, as docs/serving.md has it."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    return frame({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mock", "choices": choices, **more})


DONE = b"data: [DONE]\n\n"
ROLE = chunk({"role": "assistant", "content": ""})


def usage(prompt=71, completion=19, cached=0, **more):
    return chunk(usage={"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
                        "prompt_tokens_details": {"cached_tokens": cached}}, **more)


def said(*texts, finish="stop", name="content"):
    """The stream of an answer in these pieces."""
    return [ROLE, *[chunk({name: text}) for text in texts], chunk({}, finish), usage(completion=len(texts)), DONE]


def error(status, message, code=None, **more):
    return status, {"error": {"message": message, "type": "error", "param": None, "code": code, **more}}


def stats(**changed):
    """What /stats answers."""
    latency = {"p50": 0.05, "p90": 0.12, "p99": 0.4}
    return {"model": "mock", "uptime_seconds": 60.0, "ready": True, "running": 3, "waiting": 1, "blocks": 200, "blocks_used": 50,
            "blocks_cached": 100, "slots": 16, "slots_used": 3, "prompt_tokens_per_second": 812.5,
            "generation_tokens_per_second": 96.25, "prompt_tokens": 9000, "generation_tokens": 1234, "prefix_queries": 1000,
            "prefix_hits": 640, "preemptions": 2, "step_tokens": 48,
            "finished": {"stop": 5, "length": 1, "cancelled": 0, "error": 0},
            "latency": {"ttft": dict(latency), "itl": {"p50": 0.011, "p90": 0.013, "p99": 0.021}, "e2e": {"p50": 1.5, "p90": 3.25, "p99": 8.0}},
            "experts": [], **changed}


class Mock(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port=0):
        super().__init__(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.key = None                 # the API key it wants
        self.not_ready = None           # what /ready answers instead of 200
        self.capabilities = {"vision": False, "tools": True, "reasoning": True}
        self.models = ["mock"]
        self.stream = said("Hello.")    # bytes to send, seconds to wait, events to wait for; or what error() gives
        self.stats = stats()
        self.requests = []              # bodies of POST /v1/chat/completions
        self.gone = False
        self.left = threading.Event()   # a client closed its connection during a stream
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def close(self):
        self.gone = True  # for connections that are kept alive
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address):
        pass  # browsers close connections as they like


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, content_type="application/json", headers=()):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (("Content-Type", content_type), ("Content-Length", len(body)), *headers):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def leave(self):
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def refused(self):
        if not self.server.key or self.headers["Authorization"] == f"Bearer {self.server.key}":
            return False
        self.answer(*error(401, "Invalid API key", "invalid_api_key"))
        return True

    def do_GET(self):
        mock, path = self.server, self.path
        if mock.gone:
            return self.leave()
        if path in PAGES:
            return self.answer(200, (ROOT / PAGES[path]).read_bytes(), "text/html; charset=utf-8", [("Content-Security-Policy", CONTENT_POLICY)])
        if path == "/ready":
            return self.answer(*(mock.not_ready or (200, {"status": "ok"})))
        if path == "/v1/models":
            data = [{"id": name, "object": "model", "max_model_len": 4096, "capabilities": mock.capabilities} for name in mock.models]
            return self.refused() or self.answer(200, {"object": "list", "data": data})
        if path == "/stats":
            return self.refused() or self.answer(200, mock.stats)
        self.answer(*error(404, f"there is no {path}", "not_found"))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.refused():
            return
        self.server.requests.append(body)
        if isinstance(self.server.stream, tuple):
            return self.answer(*self.server.stream)
        self.send_response(200)
        for name, value in (("Content-Type", "text/event-stream; charset=utf-8"), ("Transfer-Encoding", "chunked")):
            self.send_header(name, value)
        self.end_headers()
        self.write_stream()

    def write_stream(self):
        try:
            for part in self.server.stream:
                if isinstance(part, bytes):
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                    self.wfile.flush()
                elif isinstance(part, threading.Event):
                    part.wait(10)
                elif part == "break":
                    return self.leave()
                else:
                    time.sleep(part)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.left.set()

"""A live server for the tests: one that MOESAIC_URL names, or build/bin/moesaic serve with the demo model."""
import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import time

import httpx
import openai
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(os.environ.get("MOESAIC_PROGRAM", ROOT / "build/bin/moesaic"))
MODEL = ROOT / "models/demo"
START_SECONDS = 120  # what takes longer to load 25 MB hangs


@dataclasses.dataclass
class Server:
    url: str
    process: subprocess.Popen | None = None
    log: pathlib.Path | None = None

    @property
    def address(self):
        host, port = self.url.removeprefix("http://").split(":")
        return host, int(port)

    def get(self, path, **options):
        return httpx.get(self.url + path, timeout=60, **options)

    def post(self, path, body, **options):
        return httpx.post(self.url + path, json=body, timeout=120, **options)

    def chat(self, text="Hi", **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **fields})

    def complete(self, prompt, **fields):
        """The body of a completion that must succeed; greedy unless told."""
        answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def stream(self, path, body):
        """All events of a stream, parsed; the last must be [DONE], which is left out."""
        with httpx.stream("POST", self.url + path, json=body | {"stream": True}, timeout=120) as answer:
            if answer.status_code != 200:
                answer.read()
                raise AssertionError(f"{answer.status_code}: {answer.text}")
            assert answer.headers["content-type"].startswith("text/event-stream")
            frames = "".join(answer.iter_text()).split("\n\n")
        assert frames.pop() == "", "the last frame has no blank line behind it"
        events = [f for f in frames if not f.startswith(":")]
        assert all(f.startswith("data: ") and "\n" not in f for f in events), events
        assert events.pop() == "data: [DONE]"
        return [json.loads(f.removeprefix("data: ")) for f in events]

    def tokens(self, prompt, special=False):
        answer = self.post("/tokenize", {"prompt": prompt, "add_special_tokens": special})
        assert answer.status_code == 200, answer.text
        return answer.json()["tokens"]

    def metric(self, name):
        """Sum of a metric's series; None when /metrics does not have it."""
        values = [float(line.rsplit(" ", 1)[1]) for line in self.get("/metrics").text.splitlines()
                  if line.startswith((name + "{", name + " "))]
        return sum(values) if values else None

    def in_flight(self):
        return self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting")

    def wait_idle(self, seconds=10):
        end = time.monotonic() + seconds
        while self.in_flight() > 0:
            assert time.monotonic() < end, f"{self.in_flight()} requests are still in flight after {seconds} s"
            time.sleep(0.05)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_ready(server):
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with {server.process.returncode}:\n{server.log.read_text()}")
        with contextlib.suppress(httpx.TransportError):
            if server.get("/health").status_code == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"not ready after {START_SECONDS} s:\n{server.log.read_text()}")


@contextlib.contextmanager
def running_server(log, *flags):
    port = free_port()
    command = [PROGRAM, "serve", MODEL, "--host", "127.0.0.1", "--port", str(port), "--served-model-name", "demo", *flags]
    with open(log, "w") as out:
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=subprocess.STDOUT)
    server = Server(f"http://127.0.0.1:{port}", process, log)
    try:
        wait_ready(server)
        yield server
        assert process.poll() is None, f"the server died with {process.returncode}:\n{log.read_text()}"
    finally:
        process.terminate()
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError("SIGTERM did not end the server in 60 s") from None
    assert code == 0, f"SIGTERM ended the server with {code}:\n{log.read_text()}"


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    if url := os.environ.get("MOESAIC_URL"):
        yield Server(url.rstrip("/"))
        return
    with running_server(tmp_path_factory.mktemp("server") / "log", "--max-num-seqs", "8") as running:
        yield running


@pytest.fixture
def own_server(tmp_path):
    """Starts a server with other flags: own_server("--api-key", "k")."""
    if os.environ.get("MOESAIC_URL"):
        pytest.skip("needs a server of its own")
    with contextlib.ExitStack() as stack:
        yield lambda *flags: stack.enter_context(running_server(tmp_path / "log", *flags))


@pytest.fixture(autouse=True)
def still_alive(request):
    """After each test the server must be there and idle: no test may leave work behind."""
    yield
    if "server" in request.fixturenames:
        server = request.getfixturevalue("server")
        assert server.get("/health").status_code == 200
        server.wait_idle()


@pytest.fixture
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=120)

"""HTTP by hand, for what no client library sends."""
import json
import socket
import time


def request(path="/v1/completions", body=None, method="POST", headers=()):
    """The bytes of one request; `headers` come after the usual ones."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if method != "GET":
        lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


def connect(server, receive_bytes=None):
    s = socket.socket()
    if receive_bytes:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    s.settimeout(60)
    s.connect(server.address)
    return s


class Reader:
    """Reads answers off one connection."""

    def __init__(self, connection):
        self.connection, self.rest = connection, b""

    def more(self):
        piece = self.connection.recv(65536)
        self.rest += piece
        return bool(piece)

    def until(self, mark):
        while mark not in self.rest:
            assert self.more(), f"the connection ended after {self.rest!r}"
        head, self.rest = self.rest.split(mark, 1)
        return head

    def exactly(self, count):
        while len(self.rest) < count:
            assert self.more(), f"the connection ended after {self.rest!r}"
        out, self.rest = self.rest[:count], self.rest[count:]
        return out

    def chunks(self):
        while size := int(self.until(b"\r\n"), 16):
            yield self.exactly(size)
            assert self.exactly(2) == b"\r\n"
        assert self.exactly(2) == b"\r\n"

    def answer(self):
        """(status, headers, body) of the next answer."""
        head = self.until(b"\r\n\r\n").decode()
        first, *lines = head.split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines)}
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(self.chunks())
        else:
            body = self.exactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    def closed(self, seconds=5):
        """Whether the other side closes the connection, which may be by a reset."""
        self.connection.settimeout(seconds)
        try:
            while self.more():
                pass
            return True
        except (ConnectionResetError, BrokenPipeError):
            return True
        except TimeoutError:
            return False


def ask(server, data):
    """Sends bytes on a fresh connection; the first answer."""
    with connect(server) as connection:
        connection.sendall(data)
        return Reader(connection).answer()


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True

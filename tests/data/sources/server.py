"""A small HTTP server on loopback that serves a folder by ranges, and fails as told."""

import http.server
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

Answer = tuple[int, bytes, dict[str, str]]  # status, content, headers


class Server(http.server.ThreadingHTTPServer):
    """`faults` are taken one a request for bytes: "cut" (in half), a status, "slow", "silent" or None."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root = root
        self.faults: list[str | int] = []
        self.of_every_request = False  # also those without a range
        self.ranges = True
        self.sizes = True
        self.gone = False
        self.answer: Callable[[str], Answer | None] = lambda _: None
        self.requests: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are no news."""


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def do_GET(self) -> None:
        server, path = self.server, unquote(urlsplit(self.path).path)
        if server.gone:
            self.close_connection = True
            return None
        server.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        fault = self._fault()
        if isinstance(fault, int):
            return self._send(fault, b"")
        if answer := server.answer(path):
            return self._send(*answer)
        file = server.root / path.lstrip("/")
        if file.is_dir():
            links = "".join(f'<a href="{child.name}">{child.name}</a>\n' for child in sorted(file.iterdir()))
            return self._send(200, links.encode(), {"Content-Type": "text/html"})
        if not file.is_file():
            return self._send(404, b"")
        content, headers, status = file.read_bytes(), {"ETag": f'"{file.stat().st_mtime_ns:x}"'}, 200
        bounds = self.headers.get("Range", "").removeprefix("bytes=")
        if bounds and server.ranges:
            start, _, end = bounds.partition("-")
            last = min(int(end), len(content) - 1) if end else len(content) - 1
            headers["Content-Range"] = f"bytes {start}-{last}/{len(content)}"
            content, status = content[int(start) : last + 1], 206
        return self._send(status, content, headers, fault)

    def _fault(self) -> str | int | None:
        wanted = self.server.of_every_request or (self.command == "GET" and "Range" in self.headers)
        return self.server.faults.pop(0) if wanted and self.server.faults else None

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None, fault: Any = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if self.server.sizes:
            self.send_header("Content-Length", str(len(content)))
        else:
            self.close_connection = True
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault == "silent":
            time.sleep(3)
        if fault == "cut":
            content, self.close_connection = content[: len(content) // 2], True
        step = max(1, len(content) // 20) if fault == "slow" else max(1, len(content))
        for start in range(0, len(content), step):
            self.wfile.write(content[start : start + step])
            if fault == "slow":
                time.sleep(0.02)


@contextmanager
def serving(root: Path) -> Iterator[Server]:
    server = Server(root)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.gone = True
        server.shutdown()
        server.server_close()

"""A hub of one process: as much of the Hugging Face hub's HTTP interface as push_to_hub and from_pretrained speak."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0" * 39 + "1"


class _Handler(BaseHTTPRequestHandler):
    """Repositories are dictionaries of files; every file is sent inside its commit, none by Git LFS."""

    repositories: dict[str, dict[str, bytes]]
    unknown: list[str]
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or self._chunks()
        path = self.path.partition("?")[0]
        if path == "/api/repos/create":
            request = json.loads(body)
            name = "/".join(part for part in (request.get("organization") or "me", request["name"]) if part)
            self.repositories.setdefault(name, {})
            self._json({"url": self._url(name), "id": name})
        elif path == "/api/validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            files = json.loads(body)["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            self._json({"files": modes})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            for line in body.splitlines():
                part = json.loads(line)
                if part["key"] == "file":
                    self.repositories[match[1]][part["value"]["path"]] = base64.b64decode(part["value"]["content"])
            url = f"{self._url(match[1])}/commit/{COMMIT}"
            self._json({"success": True, "commitOid": COMMIT, "commitUrl": url, "pullRequestUrl": None})
        else:
            self._missing()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            files = self.repositories.get(match[1])
            if files is None:
                return self._error("RepoNotFound")
            if match[2] not in files:
                return self._error("EntryNotFound")
            data = files[match[2]]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
            return self._send(data, "application/octet-stream", headers)
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/[^/]+)?", path):
            files = self.repositories.get(match[1])
            if files is None:
                return self._error("RepoNotFound")
            siblings = [{"rfilename": name} for name in files]
            return self._json({"id": match[1], "modelId": match[1], "sha": COMMIT, "siblings": siblings, "tags": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/]+(/.*)?", path):
            files = self.repositories.get(match[1], {})
            return self._json(
                [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in files.items()
                ]
            )
        return self._missing()

    do_HEAD = do_GET

    def _chunks(self) -> bytes:
        """A body that is sent in chunks."""
        body = b""
        while self.headers.get("Transfer-Encoding") == "chunked" and (size := int(self.rfile.readline(), 16)):
            body += self.rfile.read(size)
            self.rfile.readline()
        return body

    def _url(self, name: str) -> str:
        return f"http://{self.headers['Host']}/{name}"

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), "application/json", {}, status)

    def _error(self, code: str) -> None:
        self._send(b"{}", "application/json", {"X-Error-Code": code, "X-Error-Message": code}, 404)

    def _missing(self) -> None:
        self.unknown.append(f"{self.command} {self.path}")
        self._error("EntryNotFound")

    def _send(self, data: bytes, kind: str, headers: dict[str, str], status: int = 200) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


class Hub(ThreadingHTTPServer):
    """``url`` is what HF_ENDPOINT names; ``unknown`` are requests that it did not understand."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.unknown: list[str] = []
        attributes = {"repositories": self.repositories, "unknown": self.unknown}
        super().__init__(("127.0.0.1", 0), type("Handler", (_Handler,), attributes))
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@contextlib.contextmanager
def mock_hub() -> Iterator[Hub]:
    with Hub() as hub:
        thread = threading.Thread(target=hub.serve_forever, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            hub.shutdown()
            thread.join()

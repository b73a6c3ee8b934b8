"""Fake W&B servers, working and faulty, and the environment of a process that uses them."""

import json
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
PROMISE = 15.0  # seconds that W&B may add to a point, as documented in conf/tracker/wandb.yaml
Answer = Callable[[str, str, bytes], tuple[int, dict] | None]  # (host, path, body) -> (status, JSON), or no answer


@dataclass(frozen=True)
class Version:
    """A version of an artifact: the run that created it, if any, its name, type and digest of the files."""

    run: str | None
    name: str
    type: str
    digest: str


class Wandb:
    """Server that answers `wandb sync` and wandb-workspaces like W&B, and stores the received data.

    It has one project, outrider of the user me.
    """

    def __init__(self) -> None:
        self.history: dict[str, dict[int, dict]] = {}  # run id -> step -> row
        self.summaries: dict[str, dict] = {}
        self.job_types: dict[str, str] = {}  # run id -> job type
        self.versions: list[Version] = []
        self.used: list[tuple[str, Version]] = []  # (run id, version)
        self.views: list[dict[str, Any]] = []  # variables of a saved report or workspace, its spec parsed

    def __call__(self, host: str, path: str, body: bytes) -> tuple[int, dict]:
        if path.endswith("/file_stream"):
            self._keep(path.split("/")[-2], json.loads(body).get("files", {}))
            return 200, {}
        if "/upload/" in path:
            return 200, {}
        query = json.loads(body or "{}")
        variables, operation = query.get("variables"), query.get("operationName")
        if not operation and (named := re.search(r"(?:query|mutation) (\w+)", query.get("query", ""))):
            operation = named[1]
        if operation == "UpsertBucket":
            self.job_types[variables["name"]] = variables["jobType"] or self.job_types[variables["name"]]
            project = {"id": "1", "name": "p", "entity": {"id": "2", "name": "e"}}
            bucket = {"id": "3", "name": variables["name"], "displayName": "n", "config": "{}", "historyLineCount": 0}
            return 200, {"data": {"upsertBucket": {"bucket": {**bucket, "project": project}, "inserted": True}}}
        if operation == "CreateRunFiles":
            files = [{"name": name, "uploadUrl": f"http://{host}/upload/{name}"} for name in variables["files"]]
            return 200, {"data": {"createRunFiles": {"runID": "3", "uploadHeaders": [], "files": files}}}
        if operation == "CreateArtifact":
            given = variables["input"]
            names = ("runName", "artifactCollectionName", "artifactTypeName", "digest")
            self.versions.append(Version(*(given[name] for name in names)))
            known = {"id": str(len(self.versions) - 1), "state": "COMMITTED"}  # no upload of the files needed
            sequence = {"id": "4", "latestArtifact": None}
            return 200, {"data": {"createArtifact": {"artifact": {**known, "artifactSequence": sequence}}}}
        if operation == "UseArtifact":
            given = variables["input"]
            self.used.append((given["runName"], self.versions[int(given["artifactID"])]))
            return 200, {"data": {"useArtifact": {"artifact": {"id": given["artifactID"]}}}}
        return 200, {"data": self._account(operation, variables or {})}

    def _account(self, operation: str | None, variables: dict[str, Any]) -> dict:
        """Answer to a request of the public API."""
        known = variables.get("entityName") == "me" and variables.get("projectName") == "outrider"
        match operation:
            case "Viewer":
                return {"viewer": {"id": "2", "entity": "me", "username": "me", "email": "", "flags": "{}",
                                   "teams": {"edges": [{"node": {"name": "me"}}]}}}  # fmt: skip
            case "ProjectInternalId":
                return {"project": {"id": "1", "internalId": "1"} if known else None}
            case "GetProjects":
                node = {"id": "1", "name": "outrider", "entityName": "me", "createdAt": "", "isBenchmark": False,
                        "user": None}  # fmt: skip
                pages = {"endCursor": None, "hasNextPage": False}
                return {"models": {"edges": [{"node": node, "cursor": ""}], "pageInfo": pages}}
            case "upsertView" | "UpsertView2":
                self.views.append({**variables, "spec": json.loads(variables["spec"])})
                project = {"id": "1", "name": "outrider", "entityName": "me"}
                kept = {key: variables[key] for key in ("type", "name", "displayName", "description", "spec")}
                view = {**kept, "id": f"view{len(self.views)}", "project": project, "updatedAt": None}
                return {"upsertView": {"view": view, "inserted": True}}
        return {}

    def _keep(self, run: str, files: dict[str, Any]) -> None:
        rows = files.get("wandb-history.jsonl", {"content": []})
        for row in map(json.loads, rows["content"]):
            self.history.setdefault(run, {})[row["_step"]] = row
        for summary in files.get("wandb-summary.json", {"content": []})["content"]:
            self.summaries[run] = json.loads(summary)


class DiesIn:
    """Server that works until the first path or body that contains `word`, and then never answers."""

    def __init__(self, word: str) -> None:
        self._word = word
        self._dead = threading.Event()
        self._alive = Wandb()

    def __call__(self, host: str, path: str, body: bytes) -> tuple[int, dict] | None:
        if self._word in path or self._word.encode() in body:
            self._dead.set()
        return None if self._dead.is_set() else self._alive(host, path, body)


@contextmanager
def serving(answer: Answer) -> Iterator[str]:
    """Address of a local server; an answer of None keeps the client waiting."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"] or 0))
            given = answer(self.headers["Host"], self.path, body)
            if given is None:
                over.wait(60)
                self.close_connection = True
                return
            content = json.dumps(given[1]).encode()
            self.send_response(given[0])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:
            """Ignore the error of a stopped client."""

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()


@contextmanager
def refusing() -> Iterator[str]:
    """Address without a listener."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{nobody.getsockname()[1]}"


@contextmanager
def silent() -> Iterator[str]:
    """Address that accepts connections but never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def always(status: int, message: str) -> Callable[[], Any]:
    return lambda: serving(lambda *_: (status, {"errors": [{"message": message}]}))


def environment(folder: Path, address: str, *, key: str | None = "a" * 40) -> dict[str, str]:
    """Environment of this process without W&B and proxy variables, with a home folder of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    kept = {name: value for name, value in kept.items() if not name.startswith("WANDB_")}
    kept |= {"HOME": str(folder / "home"), "PYTHONPATH": str(REPOSITORY), "WANDB_BASE_URL": address}
    return kept | ({"WANDB_API_KEY": key} if key else {})

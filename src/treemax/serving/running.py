"""Start the service: load the models, bind the socket, and answer in one process or in several."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from treemax.extras import import_extra
from treemax.serving.guard import Guard, is_loopback
from treemax.serving.request_bodies import Limits


@dataclass
class Settings:
    """The settings of `treemax serve`."""

    models: dict[str, str]  # paths by name
    host: str = "127.0.0.1"
    port: int = 8000
    data: str | None = None
    token_hash: str | None = None
    private: bool = False
    allowed_hosts: list[str] = field(default_factory=list)
    body_bytes: int = Limits._field_defaults["body_bytes"]
    rows: int = Limits._field_defaults["rows"]
    seconds: float = Limits._field_defaults["seconds"]
    connections: int = 1000
    workers: int = 1
    learn: bool = True
    api: str | None = None
    errors: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # of test data, by model and node

    def to_json(self) -> str:
        """Return the settings for a worker process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that `to_json` wrote."""
        return cls(**json.loads(text))

    def check(self) -> None:
        """Raise if the settings would be unsafe."""
        if not is_loopback(self.host) and self.token_hash is None:
            raise ValueError(
                f"Listening on {self.host}, others can reach this server: it needs a token for learning and "
                "administration. Pass --token or --token-file."
            )
        if self.private and self.token_hash is None:
            raise ValueError("--private needs a token: pass --token or --token-file.")

    def folder(self, name: str) -> Path:
        """Return the data folder of a model."""
        path = Path(self.models[name])
        return path.with_name(path.name + ".serve") if self.data is None else Path(self.data) / name

    @property
    def limits(self) -> Limits:
        return Limits(self.body_bytes, self.rows, self.seconds)


def make_application(settings: Settings, worker: int = 0) -> Any:
    """Return the ASGI application, with its models loaded."""
    from treemax.serving.application import Application

    models = {name: open_model(settings, name) for name in settings.models}
    for name, errors in settings.errors.items():
        models[name].served.errors = errors
    guard = Guard(settings.token_hash, settings.allowed_hosts, settings.private)
    return Application(models, guard, settings.limits, worker, settings.api)


def open_model(settings: Settings, name: str) -> Any:
    """Return a learning model if the model learns online and this is allowed, else one that only predicts."""
    from treemax.serving.learning import LearningModel
    from treemax.serving.model_files import StaticModel, load_file

    path, folder = Path(settings.models[name]), settings.folder(name)
    loaded = load_file(name, path, folder, settings.learn)
    if loaded.served.learns:
        return LearningModel(name, path, folder, loaded, shared=settings.workers > 1)
    return StaticModel(name, path, folder, loaded)


def run(settings: Settings, report: Callable[[str], object]) -> None:
    """Serve until a signal ends the process."""
    from treemax.serving.server import bound_socket, serve
    from treemax.serving.workers import Workers

    for module in ("uvicorn", "starlette", "httptools"):
        import_extra(module, "treemax serve", "serve")
    settings.check()
    for path in settings.models.values():
        if not Path(path).is_file():
            raise ValueError(f"{path}: there is no such file.")
    listening = bound_socket(settings.host, settings.port)
    started = f"Serving {', '.join(settings.models)} on {address(listening)}"
    if settings.workers > 1:
        workers = Workers(settings, listening)
        workers.start()
        report(started)
        workers.watch()
        return
    application = make_application(settings)
    report(started)
    serve(application, listening, settings.connections, settings.seconds)


def address(listening: socket.socket) -> str:
    """Return the URL of a socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

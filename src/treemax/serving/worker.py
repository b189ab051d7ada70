"""A worker process of `treemax serve`; the settings come from standard input, which its parent keeps open."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading

from treemax.serving.running import Settings, make_application
from treemax.serving.server import serve


def main() -> None:
    """Serve on the socket with the number of the first argument."""
    descriptor, worker = int(sys.argv[1]), int(sys.argv[2])
    settings = Settings.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    application = make_application(settings, worker)
    print("ready", flush=True)
    serve(application, socket.socket(fileno=descriptor), settings.connections, settings.seconds)


def _end_with_parent() -> None:
    sys.stdin.read()  # returns when the parent has ended
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    main()

"""Several worker processes that share a socket; one that ends is restarted."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from treemax.serving.running import Settings

GRACE_SECONDS = 15.0
RESTART_SECONDS = 1.0  # between two starts of a worker


class Workers:
    """The worker processes."""

    def __init__(self, settings: Settings, listening: socket.socket) -> None:
        self._settings, self._listening = settings, listening
        self._processes: list[subprocess.Popen[str]] = []
        self._stopped = False

    def start(self) -> None:
        """Start the workers, and wait until all are ready; raises ValueError if one cannot start."""
        self._processes = [self._started(worker) for worker in range(self._settings.workers)]
        for process in self._processes:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "ready":
                self.stop()
                raise ValueError("A worker could not start; its message is above.")

    def _started(self, worker: int) -> subprocess.Popen[str]:
        descriptor = self._listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "treemax.serving.worker", str(descriptor), str(worker)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(descriptor,),
            start_new_session=True,  # Ctrl-C is for this process, which then ends the workers
        )
        assert process.stdin is not None
        process.stdin.write(self._settings.to_json() + "\n")
        process.stdin.flush()
        return process

    def watch(self) -> None:
        """Restart workers that ended, until a signal ends this process."""

        def stop(*_: Any) -> None:
            self._stopped = True

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        try:
            while not self._stopped:
                time.sleep(0.1)
                for worker, process in enumerate(self._processes):
                    if process.poll() is not None and not self._stopped:
                        time.sleep(RESTART_SECONDS)
                        self._processes[worker] = self._started(worker)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the workers; requests in progress are finished."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.terminate()
        end = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            try:
                process.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

"""The server process: uvicorn with limits for slow clients, and several workers that share a socket."""

from __future__ import annotations

import asyncio
import gc
import socket
from typing import Any

from treemax.extras import import_extra

MOST_HEAD_BYTES = 64 * 2**10
TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises OSError if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise OSError(error.errno, f"cannot listen there: {error.strerror}", f"{host}:{port}") from None
    listening.set_inheritable(True)
    return listening


def serve(application: Any, listening: socket.socket, connections: int, seconds: float) -> None:
    """Answer requests until a signal ends the process; requests in progress are finished."""
    uvicorn = import_extra("uvicorn", "treemax serve", "serve")
    config = uvicorn.Config(
        application,
        log_level="warning",
        access_log=False,
        http=_protocol(seconds),
        loop="auto",
        ws="none",
        lifespan="on",
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=connections,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=10,
        backlog=2048,
    )
    gc.collect()
    gc.freeze()  # a full collection of all that was imported would stop answers for a tenth of a second
    uvicorn.Server(config).run(sockets=[listening])


def _protocol(seconds: float) -> Any:
    """Return uvicorn's protocol with limits on the time and size of requests, and on the time to read answers."""
    import_extra("httptools", "treemax serve", "serve")
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class LimitedProtocol(HttpToolsProtocol):
        """A connection that is closed when a request comes, or an answer is read, too slowly."""

        _timer: asyncio.TimerHandle | None = None  # until the request has arrived
        _stuck: asyncio.TimerHandle | None = None  # until the client reads on
        _in_message = False
        _head_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._timer = self.loop.call_later(seconds, self._close_slow_connection)

        def data_received(self, data: bytes) -> None:
            in_head = not self._in_message or self._head_bytes > 0
            super().data_received(data)
            if not self._in_message:
                self._stop_timer()
                return
            if self._timer is None:
                self._timer = self.loop.call_later(seconds, self._close_slow_connection)
            if in_head and self._head_bytes > 0:
                self._head_bytes += len(data)
                if self._head_bytes > MOST_HEAD_BYTES and not self.transport.is_closing():
                    self.send_400_response("The head of the request is too long.")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_message, self._head_bytes = True, 1

        def on_headers_complete(self) -> None:
            self._head_bytes = 0
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_message = False
            super().on_message_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            if self._stuck is not None:
                self._stuck.cancel()
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stuck = self.loop.call_later(seconds, self.transport.abort)

        def resume_writing(self) -> None:
            if self._stuck is not None:
                self._stuck.cancel()
            super().resume_writing()

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _close_slow_connection(self) -> None:
            self._timer = None
            if not self.transport.is_closing():
                if self._in_message:
                    self.transport.write(TOO_SLOW)
                self.transport.close()

    return LimitedProtocol

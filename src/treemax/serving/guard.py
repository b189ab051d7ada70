"""Access control: the Host and Origin of a request, and the token for learning and administration."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

from treemax.serving.errors import RequestError

SHORTEST_TOKEN = 16
PREFIX = "sha256:"


def hash_of_token(token: str, salt: str | None = None) -> str:
    """Return the salted hash of a token, as it is stored.

    >>> hash_of_token("a long enough token", "00")[:10]
    'sha256:00:'
    """
    if len(token) < SHORTEST_TOKEN:
        raise ValueError(f"The token has {len(token)} characters; it needs at least {SHORTEST_TOKEN}.")
    salt = secrets.token_hex(16) if salt is None else salt
    return f"{PREFIX}{salt}:{hashlib.sha256(f'{salt}:{token}'.encode()).hexdigest()}"


def is_hash(text: str) -> bool:
    """Return whether a text is what `hash_of_token` returns."""
    salt, colon, digest = text.removeprefix(PREFIX).partition(":")
    return text.startswith(PREFIX) and bool(salt and colon) and len(digest) == 64


def read_token_file(path: str) -> tuple[str, str | None]:
    """Return the hash of a token from a file; if there is no file, make a token and write its hash.

    Returns the hash, and the token if it is new.
    """
    file = Path(path)
    if file.exists():
        stored = file.read_text().strip()
        if not is_hash(stored):
            raise ValueError(f"{path} does not hold the hash of a token. Remove the file, and a new token is made.")
        return stored, None
    token = secrets.token_urlsafe(32)
    stored = hash_of_token(token)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(stored + "\n")
    return stored, token


def is_loopback(host: str) -> bool:
    """Return whether a server that binds to this host can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Checks the headers of requests against foreign web pages, and the token.

    A page of another site can make a browser send requests here. It cannot forge the Origin header, and after DNS
    rebinding the Host header is the name of that site. So the host must be localhost, an address, or a name given
    with `allowed_hosts`; and an origin must be this server.
    """

    def __init__(self, token_hash: str | None = None, allowed_hosts: Iterable[str] = (), private: bool = False) -> None:
        self.token_hash = token_hash
        self.private = private
        self._names = {"localhost", *(host.lower() for host in allowed_hosts)}
        self._good_hosts: set[bytes] = set()  # those that passed before

    def check_source(self, headers: dict[bytes, bytes]) -> None:
        """Raise for a request from a page of another site, or to another host name (DNS rebinding)."""
        host = headers.get(b"host", b"")
        if host not in self._good_hosts:
            if not self._is_ours(host):
                raise RequestError(
                    f"This server does not answer to the host {host.decode('latin-1')!r:.100}. "
                    "Start it with --allow-host NAME if that is its name.",
                    421,
                )
            if len(self._good_hosts) < 1000:
                self._good_hosts.add(host)
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() not in (b"http://" + host.lower(), b"https://" + host.lower()):
            raise RequestError("Requests from pages of other sites are refused.", 403)
        if (
            headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site")
            and headers.get(b"sec-fetch-mode") != b"navigate"
        ):
            raise RequestError("Requests from pages of other sites are refused.", 403)

    def _is_ours(self, host: bytes) -> bool:
        name = host.decode("latin-1").lower()
        if name.startswith("["):
            name, _, port = name[1:].partition("]")
            port = port.removeprefix(":")
        else:
            name, _, port = name.partition(":")
        if port and not port.isdecimal():
            return False
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True

    def check_token(self, headers: dict[bytes, bytes]) -> None:
        """Raise unless the request has the token, where there is one."""
        if self.token_hash is None:
            return
        kind, _, token = headers.get(b"authorization", b"").partition(b" ")
        salt = self.token_hash.split(":")[1]
        given = hashlib.sha256(salt.encode() + b":" + token.strip()).hexdigest()
        if kind.lower() != b"bearer" or not hmac.compare_digest(f"{PREFIX}{salt}:{given}", self.token_hash):
            raise RequestError("This needs the token, as the header Authorization: Bearer TOKEN.", 401)

"""Access control of one running studio: one-time launch secrets, the browser's session, and the token for programs.

The address that opens a studio has a launch secret in its fragment. The page exchanges it, once, for a session of two
parts: an HttpOnly cookie, and a key that the page sends as a header. Browsers send cookies to every port of a host, so
a server on another port could receive the cookie; it grants no access without the key, which is stored per origin.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import NamedTuple

LAUNCH_SECONDS = 300.0  # until a launch secret expires
_MOST = 64  # launch secrets that are valid at a time


class _Launch(NamedTuple):
    expires: float
    end: Callable[[], None]


class Access:
    """The secrets of a studio on one port. Without `token`, the token and the session are new."""

    def __init__(self, port: int, token: str | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.token = token or secrets.token_urlsafe(32)
        self.control = secrets.token_urlsafe(32)  # for `rowgrad studio --link`, never for a browser
        self.cookie_name = f"rowgrad-studio-{port}"
        self._clock = clock
        self._launches: dict[bytes, _Launch] = {}
        # Derived from the token, so that windows stay signed in if a restarted studio uses the saved token.
        self._session, self.page_key = self._derive(f"session {port}"), self._derive(f"page {port}")

    def _derive(self, purpose: str) -> str:
        return hmac.new(self.token.encode(), f"rowgrad studio {purpose}".encode(), hashlib.sha256).hexdigest()

    @property
    def cookie(self) -> str:
        """Return the value of Set-Cookie. Without an age, the cookie ends with the browser."""
        return f"{self.cookie_name}={self._session}; Path=/; HttpOnly; SameSite=Strict"

    def new_launch(self, end: Callable[[], None] = lambda: None) -> str:
        """Return a new secret that opens one session. `end` is called when it is used or has expired."""
        self._expire()
        while len(self._launches) >= _MOST:
            self._launches.pop(next(iter(self._launches))).end()
        secret = secrets.token_urlsafe(32)
        self._launches[_digest(secret)] = _Launch(self._clock() + LAUNCH_SECONDS, end)
        return secret

    def use_launch(self, secret: str) -> bool:
        """Invalidate a launch secret; return False if it is unknown, was used before, or has expired."""
        self._expire()
        found = self._launches.pop(_digest(secret), None)
        if found is not None:
            found.end()
        return found is not None

    def close(self) -> None:
        """Make all launch secrets invalid."""
        while self._launches:
            self._launches.popitem()[1].end()

    def is_token(self, value: str) -> bool:
        """Return whether this is the token of a program."""
        return _same(value, self.token)

    def is_control(self, value: str) -> bool:
        """Return whether this is the secret of `rowgrad studio --link`."""
        return _same(value, self.control)

    def is_session(self, cookies: str, page_key: str) -> bool:
        """Return whether a window may send requests: the cookie and the key must both match.

        A server on another port may have set a cookie of the same name, so every one of that name is compared.
        """
        pairs = (part.strip().partition("=") for part in cookies.split(";"))
        has_cookie = any(_same(value, self._session) for name, _, value in pairs if name == self.cookie_name)
        return _same(page_key, self.page_key) and has_cookie

    def _expire(self) -> None:
        now = self._clock()
        for key in [key for key, launch in self._launches.items() if launch.expires <= now]:
            with contextlib.suppress(KeyError):
                self._launches.pop(key).end()


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode())

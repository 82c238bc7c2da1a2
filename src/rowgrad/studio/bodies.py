"""Bodies of requests, read within bounds: of one, of all together, and of time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

from .limits import MEBIBYTE, Limits
from .refusals import RefusedError


class Held:
    """Bytes that requests hold. Only the event loop changes it, so it needs no lock."""

    def __init__(self, most: int) -> None:
        self.most, self.now = most, 0

    def take(self, size: int) -> None:
        """Hold so many more, or refuse."""
        if self.now + size > self.most:
            raise RefusedError(503, "Busy", "other large requests are being answered; try again", retry_after="1")
        self.now += size

    def give_back(self, size: int) -> None:
        """Hold so many less."""
        self.now -= size


class Body:
    """The bytes of one request, and what they count for; `release` once nothing refers to them."""

    def __init__(self, held: Held, limit: int, weight: int) -> None:
        self._held, self._limit, self._weight = held, limit, weight
        self._parts: list[bytes] = []
        self._size = 0

    async def read(self, headers: Mapping[str, str], stream: AsyncIterator[bytes], limits: Limits) -> bytes:
        """All of it."""
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise RefusedError(415, "Compressed", "bodies are not decompressed; send it as it is")
        length = headers.get("content-length")
        if length is not None and int(length) > self._limit:  # digits only: h11 has seen to it
            raise self._too_large(f"{int(length)} bytes")
        try:
            async with asyncio.timeout(limits.body_seconds):
                async for part in stream:
                    self._add(part)
        except TimeoutError:
            text = f"the request's body was not there after {limits.body_seconds:g} seconds"
            raise RefusedError(408, "TooSlow", text, connection="close") from None
        whole = b"".join(self._parts)
        self._parts.clear()
        return whole

    def _add(self, part: bytes) -> None:
        size = self._size + len(part)
        if size > self._limit:
            raise self._too_large("more")
        self._held.take(len(part) * self._weight)
        self._size = size
        self._parts.append(part)

    def release(self) -> None:
        """The bytes are needed no more."""
        self._parts.clear()
        self._held.give_back(self._size * self._weight)
        self._size = 0

    def _too_large(self, got: str) -> RefusedError:
        most = f"{self._limit / MEBIBYTE:g} MiB" if self._limit >= MEBIBYTE else f"{self._limit} bytes"
        return RefusedError(413, "TooLarge", f"a request of this kind may have {most}; got {got}")

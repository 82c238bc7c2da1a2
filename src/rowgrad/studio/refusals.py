"""What the server itself refuses, before or beside a verb; told in the form that verbs' errors have."""

from __future__ import annotations

import json
from typing import Any


class RefusedError(Exception):
    """A request that gets no answer of a verb: a status, a short name for programs, and a sentence."""

    def __init__(self, status: int, kind: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def facts(self) -> dict[str, Any]:
        """As `verbs.error_json` has it."""
        told = {"kind": self.kind, "message": self.message, "text": self.message}
        return told | {"block": None, "pin": None, "place": None}


def error_bytes(facts: dict[str, Any]) -> bytes:
    """The document of an error."""
    return json.dumps({"error": facts}).encode()

"""Every error a user of Rayscend can meet, as one tree.

Each error says three things: what we saw, why that is wrong, and what to do about it. The same
text appears on the console, in logs, in a deployment's status and in HTTP answers.

    RayscendError
    ├── ConfigError              what was asked for cannot be served; found before a start
    ├── CoordinatorError         the coordinator is away or speaks another protocol
    ├── EngineError              an engine could not start, or died
    │   ├── TransientEngineError   worth another try at once (a port was taken, a node went away)
    │   └── PermanentEngineError   the same start would fail again (missing model, unknown flag)
    └── RequestError             one request cannot be answered; carries its HTTP status
        ├── InvalidRequest (400)   ModelNotFound (404)   RouteNotFound (404)
        ├── MethodNotAllowed (405)   BodyTooLarge (413)
        └── QueueFull (429)   ReplicaLost (502)   NoReplicaReady (503)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, ClassVar


class RayscendError(Exception):
    """Root of the tree.

    Args:
        saw: what was found, with its name and value.
        why: why that is wrong.
        remedy: what to do about it.
    """

    def __init__(self, saw: str, why: str = "", remedy: str = "") -> None:
        super().__init__(saw, why, remedy)
        self.saw, self.why, self.remedy = saw, why, remedy

    def __str__(self) -> str:
        return " ".join(_sentence(part) for part in (self.saw, self.why, self.remedy) if part)


class ConfigError(RayscendError):
    """The configuration, the model folder or this machine cannot do what was asked for."""


class CoordinatorError(RayscendError):
    """The coordinator cannot be reached, or belongs to another version of Rayscend."""


class EngineError(RayscendError):
    """An engine process could not start, or ended. Its last lines of output are `tail`."""

    transient: ClassVar[bool] = False

    def __init__(
        self, saw: str, why: str = "", remedy: str = "", tail: tuple[str, ...] = ()
    ) -> None:
        super().__init__(saw, why, remedy)
        self.args = (saw, why, remedy, tail)
        self.tail = tail


class TransientEngineError(EngineError):
    """Another try, with other addresses or on another node, may well succeed."""

    transient = True


class PermanentEngineError(EngineError):
    """The same start would fail in the same way again."""


class RequestError(RayscendError):
    """One request cannot be answered.

    `status` is the HTTP status, `code` a short machine-readable word, `param` the field of the
    request that is at fault (if one is), `retry_after_s` how long a client should wait before it
    tries again (if that helps).
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(
        self,
        saw: str,
        why: str = "",
        remedy: str = "",
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(saw, why, remedy)
        self.args = (saw, why, remedy, param, retry_after_s)
        self.param, self.retry_after_s = param, retry_after_s


class InvalidRequest(RequestError):
    status, code = 400, "invalid_request"


class ModelNotFound(RequestError):
    status, code = 404, "model_not_found"


class RouteNotFound(RequestError):
    status, code = 404, "route_not_found"


class MethodNotAllowed(RequestError):
    status, code = 405, "method_not_allowed"


class BodyTooLarge(RequestError):
    status, code = 413, "body_too_large"


class QueueFull(RequestError):
    status, code = 429, "queue_full"


class ReplicaLost(RequestError):
    """The engine broke the connection and no other replica could take the request."""

    status, code = 502, "replica_lost"


class NoReplicaReady(RequestError):
    status, code = 503, "no_replica_ready"


def did_you_mean(word: str, known: Iterable[Any]) -> str:
    """Return ` (did you mean "x"?)` for the known word nearest to `word`, or an empty string."""
    near = difflib.get_close_matches(word, [str(k) for k in known], n=1, cutoff=0.6)
    return f' (did you mean "{near[0]}"?)' if near else ""


def _sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?", ":")) else text + "."

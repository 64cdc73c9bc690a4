"""What we raise at people, split by who must act.

CounterfoilError
├── ToolError              a tool's author raises it: the model reads its message
├── DefinitionError        the developer: a tool, agent or policy that cannot be used as written
├── UsageError             the developer: a call of ours that makes no sense now
│   └── UnknownAgent       nobody has an agent of this name
├── RecordError            who asked: what the record says against it
│   ├── NotFound           no such thing for this tenant
│   ├── Conflict           another one was first
│   │   ├── DecisionConflict
│   │   └── AmbiguousCall  calls of several runs have the id
│   ├── NotAllowed         this person may not decide
│   ├── NotPending         no decision is awaited
│   └── InvalidInput       an edit that schema or policy refuses
└── OperatorError          who runs the program
    ├── StoreError         the store cannot be read or written
    ├── Fenced             another worker drives this run now
    ├── ServerError        a server of the HTTP API cannot be reached, or refuses whoever asks
    └── ModelError         the model could not be asked, or its answer not be used
"""

from __future__ import annotations

from collections.abc import Sequence

from counterfoil.core.jsontext import JsonValue, normal
from counterfoil.core.outcome import RESERVED_CODES


class CounterfoilError(Exception):
    """The root of everything that we raise."""

    problem: dict[str, JsonValue] | None = None
    """What a server of the HTTP API said, by field, where the error came from one."""


class ToolError(CounterfoilError):
    """A failure that a tool's author raises: its message is written for the model and reaches it whole.

    Args:
        message: what the model reads.
        code: an integer of the author's own, outside 4000 to 5999.
        retryable: whether the same call may succeed later; None when unknown.
        data: JSON for programs; part of the outcome.
        details: JSON for logs, timeline and replay.
        narration: one sentence for a person.

    Raises:
        ValueError: the code is one of ours.
    """

    def __init__(
        self,
        message: str,
        code: int | None = None,
        retryable: bool | None = None,  # noqa: FBT001  # the fields of ToolFailure, in their order
        data: object = None,
        details: object = None,
        narration: str | None = None,
    ) -> None:
        check_own_code(code)
        super().__init__(message)
        self.message = str(message)
        self.code = code
        self.retryable = retryable
        self.data: JsonValue = normal(data)
        self.details: JsonValue = normal(details)
        self.narration = narration

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions rebuild themselves from `args`; ours takes more than the message (process isolation pickles it).
        return type(self), (self.message, self.code, self.retryable, self.data, self.details, self.narration)


def check_own_code(code: int | None) -> None:
    """Refuse an author's code that is one of the gateway's.

    Raises:
        ValueError: it is, or it is no integer.
    """
    if code is None:
        return
    if isinstance(code, bool) or not isinstance(code, int):
        raise ValueError(f"expected an integer code, got {code!r}; give a number outside 4000 to 5999")
    if code in RESERVED_CODES:
        raise ValueError(f"code {code} is one of the gateway's own (4000 to 5999); choose one outside")


class DefinitionError(CounterfoilError, ValueError):
    """A tool, agent or policy cannot be used as written; the message names it and says what to change."""


class UsageError(CounterfoilError, RuntimeError):
    """A call makes no sense now, such as using a Runtime that is closed; the message says what to do."""


class UnknownAgent(UsageError, LookupError):
    """A run was to be started of an agent that no process has.

    Args:
        message: names the agent, and those that there are.
        agents: the names of those that there are.
    """

    def __init__(self, message: str, agents: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.agents = tuple(agents)


class RecordError(CounterfoilError):
    """What was asked contradicts the record."""


class NotFound(RecordError, LookupError):
    """There is no such thing for this tenant; what belongs to another tenant does not exist."""


class Conflict(RecordError):
    """Another one was first: an interaction has an open run, or a key was used for another request."""


class DecisionConflict(Conflict):
    """The call was already decided, and differently; the first decision stands."""


class AmbiguousCall(Conflict):
    """A decision that came by way of a run above fits a call of several runs: send it to the run that is meant.

    Args:
        message: names the call and the runs.
        runs: their ids.
    """

    def __init__(self, message: str, runs: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.runs = tuple(runs)


class NotAllowed(RecordError, PermissionError):
    """This person may not decide on this call; the call stays pending."""


class NotPending(RecordError):
    """No decision exists and none is awaited: the call is unknown, expired, cancelled or settled otherwise."""


class InvalidInput(RecordError, ValueError):
    """An edited input that the schema or the policy refuses; the call stays pending."""


class OperatorError(CounterfoilError):
    """Whoever runs the program must act."""


class StoreError(OperatorError):
    """The store cannot be opened, read or written."""


class Fenced(OperatorError):
    """Another worker holds this run now: this one's write was refused and nothing was written."""


class ServerError(OperatorError):
    """A server of the HTTP API cannot be reached, refuses the key, or answers with what cannot be used.

    Args:
        message: what happened and what to do; holds no key.
        status: of the answer; None where none came.
        type: the problem's type, without what all have before it.
        request_id: what the server's log has it under.
    """

    def __init__(
        self, message: str, *, status: int | None = None, type: str | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.request_id = request_id


class ModelError(OperatorError):
    """The model could not be asked, or answered with what cannot be used.

    Args:
        message: for the operator; holds no secret.
        retryable: whether asking again may help.
        retry_after: seconds that the provider asks to wait before that; None where it says nothing.
        elsewhere: whether another provider may answer although asking this one again does not help, as where a quota
            is used up.
    """

    def __init__(
        self, message: str, *, retryable: bool = False, retry_after: float | None = None, elsewhere: bool = False
    ) -> None:
        super().__init__(message)
        self.elsewhere = elsewhere
        self.retryable = retryable
        self.retry_after = retry_after

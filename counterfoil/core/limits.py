"""Every default number, with its unit and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from counterfoil.core.jsontext import JsonValue

STEPS = 50
"""Model turns of a run. Agent frameworks' defaults lie between 10 and 100; most tasks end within 20."""
CALLS = 500
"""Tool calls of a run: ten for each of the 50 steps."""
CONSECUTIVE_FAILURES = 5
"""Failed steps in a row before a run stops: a model that has not recovered by then seldom does."""
CONCURRENCY = 16
"""Bodies of a run that run at once; asyncio's default thread pool has min(32, cores + 4)."""
OUTPUT_BYTES = 10 * 1024 * 1024
"""Bytes of one result, 10 MiB."""
KEEP_APART_BYTES = 32 * 1024
"""A text over 32 KiB is stored apart: about 8,000 tokens, a tenth of a small model's window."""
PREVIEW_BYTES = 4 * 1024
"""Bytes of head and of tail that a model reads of a text kept apart: about a page each."""
PROMPT_BYTES = 20 * 1024 * 1024
"""Bytes of the media of one message, 20 MiB: providers take 20 to 50 MB in a request, and base64 adds a third."""
CANCEL_GRACE = 5.0
"""Seconds that running bodies have after a cancel; init systems give 10 to 90 to a whole process."""
PROCESS_CONCURRENCY = 256
"""Bodies that one process runs at once, over all its runs."""
THREADS = 32
"""Threads for sync bodies of one process: the most that asyncio's own pool would take."""
ATTEMPTS = 3
"""Starts of one safe call, at most, over crashes and retries (contract 7.6)."""
CHILDREN_DEEP = 4
"""Runs that wait for one another in a row, below the root run: a team of teams has two; more is a mistake."""
GUARD_SECONDS = 30.0
"""Seconds that one guard or one Python policy condition may take before the call is refused."""
REPORT_SECONDS = 5.0
"""Seconds that the ``on_tool_error`` handler may take before the result goes on record without it."""
READ_RESULT_CHARS = 16_000
"""Characters that one ``read_result`` gives at most: half of what is kept apart, so it never is itself."""
MODEL_RETRIES = 2
"""Further requests after a retryable model error, as the official SDKs do."""
HEARTBEAT = 2.0
"""Seconds between two signs of life of a worker in its store, as Celery's workers send: half a write a second each."""
DEAD_AFTER = 2
"""Heartbeats without a sign after which a worker counts as dead: one may be late, and its runs wait no 5 seconds."""
FORGET_SECONDS = 3600.0
"""Seconds after which a worker that is silent is forgotten: long after whatever it drove was taken up."""
RETRY_SECONDS = 0.5
"""Seconds before the first further request; it doubles with each, as in the official SDKs."""
RETRY_AFTER_SECONDS = 120.0
"""Seconds that a provider may ask to wait before a further request; after a longer wish there is none, as in OpenAI's
SDK."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of a run. What is None is not limited."""

    steps: int | None = STEPS
    """Model turns."""
    calls: int | None = CALLS
    """Tool calls."""
    tokens: int | None = None
    """Input and output tokens together, as the provider counts them."""
    cost: float | None = None
    """Money, as the provider says it or in the currency of the agent's ``prices``."""
    seconds: float | None = None
    """Seconds of work, pauses excluded."""
    consecutive_failures: int | None = CONSECUTIVE_FAILURES
    """Steps in a row in which every call failed."""
    concurrency: int = CONCURRENCY
    """Bodies that run at once."""
    output_bytes: int = OUTPUT_BYTES
    """Bytes of one result, for tools that set no ``max_output_bytes`` of their own."""
    keep_apart_bytes: int = KEEP_APART_BYTES
    """A text over this many bytes is stored apart."""
    context_tokens: int | None = None
    """Tokens of a request: as the provider counted the last one, with what came since estimated. Beyond it older
    results are elided."""
    cancel_grace: float = CANCEL_GRACE
    """Seconds that running bodies have after a cancel."""
    approval_seconds: float | None = None
    """Seconds after which an undecided approval expires."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                if f.name in ("concurrency", "output_bytes", "keep_apart_bytes", "cancel_grace"):
                    raise ValueError(f"Limits.{f.name} must be a number, got None")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise ValueError(f"Limits.{f.name} must be a number of at least 0, got {value!r}")
        if self.concurrency < 1:
            raise ValueError(f"Limits.concurrency must be at least 1, got {self.concurrency!r}")

    def to_json(self) -> dict[str, JsonValue]:
        """The limits by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


DEFAULT_LIMITS = Limits()


def limits_from_json(data: Mapping[str, JsonValue]) -> Limits:
    """The limits that ``to_json`` wrote; names of a newer version are left out, missing ones have their default."""
    names = {f.name for f in fields(Limits)}
    return Limits(**{k: v for k, v in data.items() if k in names})  # type: ignore[arg-type]  # checked by __post_init__

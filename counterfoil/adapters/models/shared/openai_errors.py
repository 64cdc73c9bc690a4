"""What went wrong on the way to a model of OpenAI's SDK, for the operator: no header, no key, no address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from openai import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncOpenAI,
    OpenAIError,
)

from counterfoil.adapters.models.shared.failures import (
    OURS,
    RETRYABLE,
    USED_UP,
    may_help,
    secrets_of,
    shown,
    why_not_sent,
    words_of,
)
from counterfoil.adapters.models.shared.waiting import retry_after
from counterfoil.core.errors import ModelError

_USED_UP: Final = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a status 429 that only a payment ends (OpenAI's guide to error codes)."""
_PASSES: Final = frozenset({"server_error", "rate_limit_exceeded", "vector_store_timeout"})
"""Codes of a failed response that may pass; the others of the SDK's `ResponseError` blame the request."""


def failure_of(error: Exception, client: AsyncOpenAI) -> ModelError:
    """The error for the operator: what happened, and what the server said of it."""
    wait: float | None = None
    elsewhere = False
    match error:
        case APIStatusError():
            wait = retry_after(error.response.headers)
            text = f"the server answered {error.status_code}: {_said(error.body)}"
            if wait is not None:
                text += f" (it asks to wait {wait:g} s)"
            used_up, elsewhere = bool({error.code, error.type} & _USED_UP), error.status_code in USED_UP
            retryable = may_help(error.status_code, error.response.headers, used_up=used_up)
        case APITimeoutError():
            text, retryable = "the server did not answer in time", True
        case APIConnectionError():
            # The class alone: the text of a cause may quote a header.
            cause = type(error.__cause__ or error).__name__
            text, retryable = f"the connection failed ({cause})", cause not in OURS
        case APIError():
            text, retryable = f"the server broke the answer off: {_said(error.body)}", _may_pass(error.body)
        case OpenAIError():
            text, retryable = f"the client could not ask ({type(error).__name__})", False
        case _:
            text, retryable = f"the server sent what cannot be read ({type(error).__name__})", True
    return ModelError(_shown(text, error, client), retryable=retryable, retry_after=wait, elsewhere=elsewhere)


def broken_off(said: Mapping[str, object], client: AsyncOpenAI) -> ModelError:
    """The error for an answer that says itself that it failed, with its ``code`` and ``message``."""
    text = f"the server broke the answer off: {_said(said)}"
    return ModelError(_shown(text, None, client), retryable=said.get("code") in (*_PASSES, None))


def cannot_send(error: Exception, client: AsyncOpenAI) -> ModelError:
    """The error for a request that does not get as far as the wire."""
    return ModelError(_shown(why_not_sent(error), error, client))


def _said(body: object) -> str:
    message = body.get("message") if isinstance(body, Mapping) else body
    return words_of(message)


def _may_pass(body: object) -> bool:
    """Whether an error amid an answer may pass: not if it says that the request was at fault."""
    code = body.get("code") if isinstance(body, dict) else None
    kind = body.get("type") if isinstance(body, dict) else None
    at_fault = isinstance(code, int) and code // 100 == 4 and code not in RETRYABLE  # noqa: PLR2004 - 4xx
    return not at_fault and kind != "invalid_request_error" and code not in _USED_UP


def _shown(text: str, error: Exception | None, client: AsyncOpenAI) -> str:
    sent = secrets_of(error.request.headers) if isinstance(error, APIError) else set()
    return shown(text, {client.api_key, *sent})

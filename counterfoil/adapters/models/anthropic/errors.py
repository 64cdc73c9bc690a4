"""What went wrong on the way to a model of Anthropic's SDK, for the operator: no header, no key, no address."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from anthropic import (
    AnthropicError,
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncAnthropic,
)

from counterfoil.adapters.models.shared.failures import (
    OURS,
    USED_UP,
    may_help,
    secrets_of,
    shown,
    why_not_sent,
    words_of,
)
from counterfoil.adapters.models.shared.waiting import retry_after
from counterfoil.core.errors import ModelError

_PASSES: Final = frozenset({"api_error", "overloaded_error", "rate_limit_error", "timeout_error", "conflict_error"})
"""Types of an error amid an answer that may pass; the others of the SDK's `ErrorType` blame request or account."""
_USED_UP: Final = frozenset({
    "contract_spend_limit_reached", "enforced_spend_limit_reached", "linked_organization_spend_limit_reached",
})  # fmt: skip  # names in rows
"""Codes in the details of a status 429 that only a person ends (the SDK's classes of rate limit errors)."""


def failure_of(error: Exception, client: AsyncAnthropic) -> ModelError:
    """The error for the operator: what happened, and what the server said of it."""
    wait: float | None = None
    elsewhere = False
    match error:
        case APIStatusError(status_code=200):  # the stream had begun
            text = f"the server broke the answer off: {words_of(said(error))}"
            retryable = kind_of_error(error) in (*_PASSES, "")
        case APIStatusError():
            wait = retry_after(error.response.headers)
            text = f"the server answered {error.status_code}: {words_of(said(error))}"
            if wait is not None:
                text += f" (it asks to wait {wait:g} s)"
            used_up, elsewhere = error.error_code in _USED_UP, error.status_code in USED_UP
            retryable = may_help(error.status_code, error.response.headers, used_up=used_up)
        case APITimeoutError():
            text, retryable = "the server did not answer in time", True
        case APIConnectionError():
            # The class alone: the text of a cause may quote a header.
            cause = type(error.__cause__ or error).__name__
            text, retryable = f"the connection failed ({cause})", cause not in OURS
        case AnthropicError():
            text, retryable = f"the client could not ask ({type(error).__name__})", False
        case _:
            text, retryable = f"the server sent what cannot be read ({type(error).__name__})", True
    return ModelError(_shown(text, error, client), retryable=retryable, retry_after=wait, elsewhere=elsewhere)


def cannot_send(error: Exception, client: AsyncAnthropic) -> ModelError:
    """The error for a request that does not get as far as the wire."""
    return ModelError(_shown(why_not_sent(error), error, client))


def said(error: APIStatusError) -> object:
    """The server's own message; the whole body where it has none in Anthropic's form."""
    inner = _inner(error)
    return inner.get("message") if inner else error.body


def kind_of_error(error: APIStatusError) -> str:
    """The error's ``type``; empty where the body has none."""
    kind = _inner(error).get("type")
    return kind if isinstance(kind, str) else ""


def _inner(error: APIStatusError) -> Mapping[str, Any]:
    inner = error.body.get("error") if isinstance(error.body, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}


def _shown(text: str, error: Exception | None, client: AsyncAnthropic) -> str:
    sent = secrets_of(error.request.headers) if isinstance(error, APIError) else set()
    return shown(text, {client.api_key, client.auth_token, *sent})

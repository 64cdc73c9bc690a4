"""What went wrong on the way to a Gemini model, for the operator: no header, no key, no address."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any, Final

from google.genai.errors import APIError

from counterfoil.adapters.models.shared.failures import (
    OURS,
    RETRYABLE,
    USED_UP,
    secrets_of,
    shown,
    why_not_sent,
    words_of,
)
from counterfoil.adapters.models.shared.waiting import retry_after
from counterfoil.core.errors import ModelError

HTTP: Final = [importlib.import_module(name) for name in ("httpx", "httpx2") if find_spec(name)]
"""The SDK takes either."""
LOST: Final[tuple[type[Exception], ...]] = tuple(
    getattr(module, name) for module in HTTP for name in ("HTTPError", "InvalidURL", "StreamError")
)
"""What a connection that fails raises."""
_IN_TIME: Final[tuple[type[Exception], ...]] = tuple(module.TimeoutException for module in HTTP)

_SECONDS: Final = re.compile(r"(\d+(?:\.\d*)?)s")
_IN_QUERY: Final = re.compile(r"([?&](?:key|access_token)=)[^&\s\"']+")
_PASSES: Final = frozenset({"RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED", "ABORTED"})
"""Statuses of google.rpc.Code with which asking again may help."""


def failure_of(error: Exception, client: Any) -> ModelError:
    """The error for the operator: what happened, and what the server said of it."""
    wait: float | None = None
    elsewhere = False
    match error:
        case APIError():
            body = _body(error.details)
            wait = _wait(body, getattr(error.response, "headers", None) or {})
            text = f"the server answered {error.code}: {words_of(body.get('message'))}"
            if wait is not None:
                text += f" (it asks to wait {wait:g} s)"
            retryable, elsewhere = _may_help(error.code, body), error.code in USED_UP
        case _ if isinstance(error, _IN_TIME):
            text, retryable = "the server did not answer in time", True
        case _ if isinstance(error, LOST):
            # The class alone: the text of an error may quote a header.
            cause = type(error).__name__
            text, retryable = f"the connection failed ({cause})", cause not in OURS | {"InvalidURL"}
        case _:
            text, retryable = f"the server sent what cannot be read ({type(error).__name__})", True
    return ModelError(_shown(text, client), retryable=retryable, retry_after=wait, elsewhere=elsewhere)


def broken_off(said: Mapping[str, Any], client: Any) -> ModelError:
    """The error for an ``error`` amid the answer."""
    text = f"the server broke the answer off: {words_of(said.get('message'))}"
    return ModelError(_shown(text, client), retryable=_may_help(said.get("code"), said), retry_after=_wait(said, {}))


def cannot_send(error: Exception, client: Any) -> ModelError:
    """The error for a request that does not get as far as the wire."""
    return ModelError(_shown(why_not_sent(error), client))


def refusal_of(error: Exception) -> str:
    """What a server says of a request that it takes for wrong (status 400), in lower case; else nothing."""
    if not isinstance(error, APIError) or error.code != 400:  # noqa: PLR2004 - bad request
        return ""
    return words_of(_body(error.details).get("message")).lower()


def _body(details: object) -> Mapping[str, Any]:
    """The ``error`` of an answer, which stands in a list where it comes in place of a stream."""
    if isinstance(details, list):
        details = details[0] if details else {}
    if isinstance(details, Mapping):
        inner = details.get("error", details)
        return inner if isinstance(inner, Mapping) else {"message": inner}
    return {}


def _details(body: Mapping[str, Any], kind: str) -> Iterator[Mapping[str, Any]]:
    details = body.get("details")
    for one in details if isinstance(details, list) else ():
        if isinstance(one, Mapping) and str(one.get("@type", "")).endswith(f"google.rpc.{kind}"):
            yield one


def _wait(body: Mapping[str, Any], headers: Mapping[str, str]) -> float | None:
    """Seconds to wait by the error's RetryInfo, else by the answer's headers."""
    for one in _details(body, "RetryInfo"):
        found = _SECONDS.fullmatch(str(one.get("retryDelay")))
        if found is not None:
            return float(found[1])
    return retry_after(headers)


def _may_help(code: object, body: Mapping[str, Any]) -> bool:
    """Whether asking again may help: not where a quota of a whole day is used up."""
    for one in _details(body, "QuotaFailure"):
        violations = one.get("violations")
        if any("PerDay" in str(violation) for violation in (violations if isinstance(violations, list) else ())):
            return False
    if not isinstance(code, int):
        return body.get("status") in (*_PASSES, None)
    return code in RETRYABLE or code >= 500  # noqa: PLR2004 - 5xx


def _shown(text: str, client: Any) -> str:
    api = client._api_client  # the one place where the SDK keeps the key
    headers = getattr(api._http_options, "headers", None) or {}
    return shown(_IN_QUERY.sub(r"\1[key]", text), {api.api_key, *secrets_of(headers)})

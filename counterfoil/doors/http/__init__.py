"""The HTTP API. Importing this is light; `create_app` brings FastAPI, which is the extra ``http``."""

import importlib.util
import secrets
import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from counterfoil.core.errors import DefinitionError
from counterfoil.core.keys import ApiKey, token_digest
from counterfoil.runtime import Runtime

__all__ = ["create_app", "create_key", "needs_extra"]

NEEDED = ("fastapi", "prometheus_client", "uvicorn")
"""What the extra `http` brings."""


def needs_extra() -> None:
    """Refuse to go on without the extra.

    Raises:
        DefinitionError: it is not installed; says what to type.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DefinitionError(
            f"the HTTP API needs {', '.join(missing)}, not installed for {sys.executable}; "
            "type: pip install 'counterfoil[http]'"
        )


def create_app(runtime: Any, **settings: Any) -> Any:
    """The ASGI application; see `counterfoil.doors.http.app.create_app`.

    Raises:
        DefinitionError: the extra ``http`` is not installed.
    """
    needs_extra()
    from counterfoil.doors.http import app

    return app.create_app(runtime, **settings)


DEFAULT_SCOPES = ("run", "approve", "read")
"""What a key may do, unless said otherwise."""


async def create_key(
    runtime: Runtime, user: str, *, tenant: str = "default", roles: Sequence[str] = (),
    scopes: Sequence[str] = DEFAULT_SCOPES, expires: timedelta | None = None,
) -> tuple[str, ApiKey]:  # fmt: skip  # two rows
    """Make a key and put it on record, without its secret.

    Args:
        runtime: open.
        user: who starts and decides with it.
        tenant: whose records it sees.
        roles: of the user, for policies and approvals.
        scopes: of `core.keys.SCOPES`.
        expires: after which it counts no more; None: never.

    Returns:
        The secret, which nothing can show again, and the key.

    Raises:
        ValueError: a scope is unknown, or a name cannot be one.
    """
    token, now = f"cf_{secrets.token_urlsafe(32)}", runtime.effects.now()
    ends = None if expires is None else now + expires // timedelta(microseconds=1)
    names = tuple(dict.fromkeys(roles)), tuple(dict.fromkeys(scopes))
    key = ApiKey(runtime.effects.new_id(), tenant, user, *names, token_digest(token), now, ends)
    await runtime.store.add_key(key)
    return token, key

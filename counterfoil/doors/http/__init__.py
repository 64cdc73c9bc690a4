"""The HTTP API. Importing this is light; `create_app` brings FastAPI, which is the extra ``http``."""

import importlib.util
import sys
from typing import Any

from counterfoil.core.errors import DefinitionError

__all__ = ["create_app", "needs_extra"]

NEEDED = ("fastapi", "uvicorn")
"""What the extra `http` brings."""


def needs_extra() -> None:
    """Refuse to go on without the extra.

    Raises:
        DefinitionError: it is not installed; says what to type.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise DefinitionError(
            f"the HTTP API needs {' and '.join(missing)}, not installed for {sys.executable}; "
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

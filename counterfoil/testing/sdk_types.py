"""Requests held against the types of the providers' own SDKs: a fake alone would share its author's mistakes."""

from __future__ import annotations

import functools
import importlib
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import SchemaValidator

from counterfoil.testing.fake_server import Fault


def sdk_fault(home: str, name: str, body: Any) -> Fault | None:
    """What a body breaks of the type ``name`` in the module ``home``; None where the SDK is not installed.

    Fields that the type does not know are refused, except at the top: there a server may know more.
    """
    validator = _validator(home, name)
    if validator is None or not isinstance(body, dict):
        return None
    known = _fields(home, name)
    try:
        validator.validate_python({k: v for k, v in body.items() if k in known}, strict=True, extra="forbid")
    except ValidationError as error:
        # Of the branches of a union the one that came furthest says most.
        worst = max(error.errors(include_url=False), key=lambda line: len(line["loc"]))
        place = ".".join(str(part) for part in worst["loc"] if not str(part).startswith(("list[", "union[")))
        return Fault(f"the SDK's {name} refuses it: {worst['msg']}", place)
    return None


def sdk_model_fault(home: str, name: str, value: Any, place: str) -> Fault | None:
    """What a value breaks of the Pydantic model ``name`` in ``home``; None where the SDK is not installed.

    Fields that the model does not know are refused as the model itself does it.
    """
    try:
        kind = getattr(importlib.import_module(home), name)
    except ImportError:
        return None
    try:
        kind.model_validate_json(json.dumps(value))
    except ValidationError as error:
        worst = max(error.errors(include_url=False), key=lambda line: len(line["loc"]))
        inner = ".".join(map(str, worst["loc"]))
        return Fault(f"the SDK's {name} refuses it: {worst['msg']}", f"{place}.{inner}")
    return None


@functools.cache
def _validator(home: str, name: str) -> SchemaValidator | None:
    try:
        kind = getattr(importlib.import_module(home), name)
    except ImportError:
        return None
    return SchemaValidator(_eager(TypeAdapter(kind).core_schema))


@functools.cache
def _fields(home: str, name: str) -> frozenset[str]:
    kind = getattr(importlib.import_module(home), name)
    return kind.__required_keys__ | kind.__optional_keys__  # type: ignore[no-any-return]  # those of a typed dict


def _eager(node: Any) -> Any:
    """The schema with lists for what Pydantic would look at only when it is read."""
    if isinstance(node, dict):
        out = {k: _eager(v) for k, v in node.items() if k not in ("metadata", "serialization")}
        return {**out, "type": "list"} if out.get("type") == "generator" else out
    if isinstance(node, (list, tuple)):
        return type(node)(map(_eager, node))
    return node

"""The least: arguments validated by pydantic-core, the tool called, its text handed back. No task, no record."""

from __future__ import annotations

import asyncio
import inspect

import core
from pydantic_core import SchemaValidator, core_schema, to_json

_FIELDS = {"item_id": core_schema.int_schema(), "label": core_schema.str_schema(), "weight": core_schema.float_schema()}
validate = SchemaValidator(
    core_schema.typed_dict_schema(
        {k: core_schema.typed_dict_field(v) for k, v in _FIELDS.items()}, extra_behavior="forbid"
    )
).validate_json


def text_of(value: object) -> str:
    """What the model would read."""
    return value if isinstance(value, str) else to_json(value).decode()


async def build(spec: core.Spec) -> object:
    fn = core.TOOLS[spec.tool]
    return fn, inspect.iscoroutinefunction(fn)


async def run(built: object, script: core.Script, number: int) -> str:
    fn, is_async = built
    history: list[object] = [core.PROMPT]
    fresh: list[tuple[str, str]] = []
    while True:
        await asyncio.sleep(0)
        calls = script.next(fresh)
        if calls is None:
            return core.FINAL
        history.append(calls)
        fresh = []
        for call in calls:
            arguments = validate(call.args_json)
            value = await fn(**arguments) if is_async else fn(**arguments)
            fresh.append((call.id, text_of(value)))
        history.extend(fresh)

"""Agent: a model, instructions, tools and rules, under a name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, cast

from counterfoil.core.call import Caller
from counterfoil.core.errors import DefinitionError
from counterfoil.core.events import Event
from counterfoil.core.jsontext import JsonValue, clean_text, normal
from counterfoil.core.limits import Limits
from counterfoil.core.media import Prompt
from counterfoil.fallback import Fallback
from counterfoil.hooks import Hooks
from counterfoil.model import Model
from counterfoil.policy import Policy
from counterfoil.prices import Prices
from counterfoil.registry import check_scheme, resolve
from counterfoil.run import Run
from counterfoil.runtime import Runtime
from counterfoil.team import tools_of
from counterfoil.tool import Tool, as_tools


class _Opened:
    """One model of an agent, and how it is had."""

    def __init__(self, agent: str, given: Model | str) -> None:
        if isinstance(given, str):
            check_scheme("model", given.partition(":")[0])
        elif not callable(getattr(given, "respond", None)):
            raise DefinitionError(
                f"{agent}: expected a model with a method respond(request), got {type(given).__name__}"
            )
        self._text = given if isinstance(given, str) else None
        self._made: Model | None = None if isinstance(given, str) else given

    def model(self) -> Model:
        """The model; made from its text on first use.

        Raises:
            DefinitionError: nothing is known under the text, or an extra is missing; the message says which.
        """
        if self._made is None:
            scheme, _, rest = cast("str", self._text).partition(":")
            self._made = cast("Model", resolve("model", scheme)(rest))
        return self._made

    async def close(self) -> None:
        """Let go of what was made from text."""
        if self._text is not None and self._made is not None:
            made, self._made = self._made, None
            close = getattr(made, "aclose", None)
            if close is not None:
                await close()

    async def disconnect(self) -> None:
        """Close the connections of this event loop."""
        disconnect = getattr(self._made, "disconnect", None)
        if disconnect is not None:
            await disconnect()


class Agent:
    """What a run is driven with. It holds no state of any run and may be used by many at once.

    Args:
        name: under which runs find it again; the same in every process.
        model: an object with the Model protocol, or text such as ``"openai:NAME"``; or a list of those, of which the
            next is asked where one cannot answer now.
        instructions: the system text, or a function of a ToolContext that gives it for each turn.
        tools: tools, or plain functions.
        policy: rules on calls; None allows every call but those of tools marked ``needs_approval``.
        output_type: a type that the answer must have, as JSON; validated by Pydantic.
        hooks: guards and observers, after those of the Runtime.
        limits: budgets of each run; None: those of the Runtime.
        manages: agents that it may give tasks to (the tool ``dispatch``) and ask (``ask``); a task is a run of its own.
        summary: the model that sums up the older part of a conversation where it does not fit into
            ``Limits(context_tokens=…)`` even without old results; True: its own. None: old turns are left out instead.
        description: what it is good for, for an agent that manages it.
        deps_type: the type of the deps; for readers and type checkers.
        parameters: settings for the provider, such as ``{"temperature": 0}``.
        prices: by the model's name, money for a million tokens as ``{"input": 3, "cached_input": 0.3, "output": 15}``;
            it gives the cost of turns whose provider tells none. None is built in.

    Raises:
        DefinitionError: it cannot be used as written; the message names the agent or the tool.
    """

    def __init__(
        self,
        name: str,
        model: Model | str | Sequence[Model | str] | None = None,
        instructions: str | Callable[..., Any] | None = None,
        tools: Sequence[Tool | Callable[..., Any]] = (),
        *,
        policy: Policy | None = None,
        output_type: Any = None,
        hooks: Hooks | Sequence[Hooks] | None = None,
        limits: Limits | None = None,
        manages: Sequence[Agent] = (),
        deps_type: type | None = None,
        parameters: dict[str, JsonValue] | None = None,
        prices: Mapping[str, Mapping[str, float]] | None = None,
        description: str | None = None,
        summary: Model | str | bool | None = None,
    ) -> None:
        if not isinstance(name, str) or not name.strip():
            raise DefinitionError(f"Agent: expected a name that is not empty, got {name!r}")
        if clean_text(name) is not name:
            raise DefinitionError(f"Agent: expected a name that can be stored, got half a surrogate: {name!r}")
        if model is None:
            raise DefinitionError(f"{name}: no model; give one, such as model='openai:NAME'")
        members = [type(member).__name__ for member in manages if not isinstance(member, Agent)]
        if members:
            raise DefinitionError(f"{name}: manages= takes agents, got {members[0]}")
        given = model if isinstance(model, (list, tuple)) else [model]
        self._models = [_Opened(name, one) for one in cast("Sequence[Model | str]", given)]
        if not self._models:
            raise DefinitionError(f"{name}: no model; the list is empty")
        if policy is not None and not isinstance(policy, Policy):
            raise DefinitionError(f"{name}: expected a Policy, got {type(policy).__name__}; use Policy.from_toml(path)")
        self.name = name
        self.model = model
        self.instructions = instructions
        self.manages = tuple(manages)
        self.description = description
        self.tool_map = {**as_tools(tools), **(tools_of(name, self.manages) if manages else {})}
        self.policy = policy
        self.output_type = output_type
        self.hooks = hooks
        self.limits = limits
        self.deps_type = deps_type
        self.parameters = dict(parameters or {})
        self.prices = None if prices is None else Prices(prices)
        several = Fallback([one.model for one in self._models])
        self.open_model: Callable[[], Model] = self._models[0].model if len(self._models) == 1 else lambda: several
        self.summary = model if summary is True else summary or None
        self.open_summary: Callable[[], Model] | None = self.open_model if summary is True else None
        if self.summary is not None and summary is not True:
            self._models.append(_Opened(name, cast("Model | str", summary)))
            self.open_summary = self._models[-1].model
        self._output: Any = None
        self.output_schema: dict[str, JsonValue] | None = None
        if output_type is not None:
            from pydantic import TypeAdapter  # most agents answer in text

            self._output = TypeAdapter(output_type)
            self.output_schema = self._output.json_schema()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """Its tools."""
        return tuple(self.tool_map.values())

    async def close_model(self) -> None:
        """Let go of models that were made from text, and of their connections; the next use makes them anew."""
        for one in self._models:
            await one.close()

    def parse_output(self, text: str) -> JsonValue:
        """The answer as the output type, as JSON.

        Raises:
            ValueError: it does not have the form; the message says where.
        """
        from pydantic import ValidationError  # as above

        try:
            if self.output_type is str:
                return text
            value = self._output.validate_json(text)
        except ValidationError as e:
            rows = [f"{'.'.join(map(str, r['loc'])) or 'answer'}: {r['msg']}" for r in e.errors(include_url=False)[:10]]
            raise ValueError("; ".join(rows)) from None
        return normal(self._output.dump_python(value, mode="json"))

    async def run(
        self, prompt: Prompt, *, caller: Caller | None = None, deps: Any = None, limits: Limits | None = None,
        hooks: Hooks | Sequence[Hooks] | None = None, approvals: str = "any-order",
    ) -> Run:  # fmt: skip  # rows by what belongs together
        """Run in memory until it ends or pauses; a paused Run goes on after its decisions with ``run.wait()``."""
        runtime = self._runtime(deps, hooks)
        run = await runtime.start(self, prompt, caller=caller, limits=limits, approvals=approvals)
        await run.wait()
        return run

    def run_sync(self, prompt: Prompt, **options: Any) -> Run:
        """As `run`, where no event loop runs."""

        async def whole() -> Run:
            try:
                return await self.run(prompt, **options)
            finally:
                for one in self._models:  # connections do not outlive their event loop
                    await one.disconnect()

        return asyncio.run(whole())

    async def stream(
        self, prompt: Prompt, *, caller: Caller | None = None, deps: Any = None, limits: Limits | None = None,
        hooks: Hooks | Sequence[Hooks] | None = None, approvals: str = "any-order",
    ) -> AsyncIterator[Event]:  # fmt: skip  # as above
        """As `run`, giving each event as it happens, until the run ends or pauses."""
        runtime = self._runtime(deps, hooks)
        run = await runtime.start(self, prompt, caller=caller, limits=limits, approvals=approvals)
        async for event in run.events():
            yield event

    def _runtime(self, deps: Any, hooks: Hooks | Sequence[Hooks] | None) -> Runtime:
        return Runtime.in_memory(self, hooks=hooks, deps=None if deps is None else lambda _: deps)

    def __repr__(self) -> str:
        return f"Agent({self.name!r}, tools={list(self.tool_map)})"

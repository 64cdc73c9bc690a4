"""A policy that can be asked: rules whose conditions are compiled, with a revision and a time limit."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import inspect
import textwrap
import time
from collections.abc import Awaitable, Callable, Generator, Iterable
from dataclasses import dataclass
from os import PathLike
from types import CodeType
from typing import Any, Literal, TypeAlias, cast

from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue, normal
from counterfoil.core.limits import GUARD_SECONDS
from counterfoil.core.policy import Condition, Facts, Rule, RuleSet, digest
from counterfoil.core.verdict import Verdict, VerdictName, strictest, unmatched
from counterfoil.registry import resolve

__all__ = ["Facts", "Policy", "Rule", "RuleCheck", "Verdict", "no_policy"]

_PLANS = 1024
"""Tool names whose rules are remembered: more than any agent has tools."""


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """What one rule says of one call, whatever the others say."""

    rule: str
    then: VerdictName
    result: Literal["matched", "not matched", "other tool", "error"]
    error: str | None = None
    """Why the condition could not be evaluated."""


@dataclass(frozen=True, slots=True)
class _Bound:
    """A rule that is ready to be asked."""

    rule: Rule
    check: Condition | None
    in_python: bool
    """The condition is somebody's function: it has a time limit, and sees a copy of the facts."""
    verdict: Verdict
    """The verdict when it matches."""


class _Pending:
    """An answer that has to be awaited, and when its check began."""

    __slots__ = ("answer", "started")

    def __init__(self, answer: Awaitable[object], started: float) -> None:
        self.answer = answer
        self.started = started


_Steps: TypeAlias = "Generator[_Pending, object, Verdict]"


class Policy:
    """Rules that decide on each call: the strictest that matches wins, deny before ask before allow.

    Where no rule matches, a ``read_only`` tool is allowed and every other gets ``default``; a tool marked
    ``needs_approval`` still asks unless a rule allows. A rule that cannot be evaluated refuses the call
    (POLICY_ERROR), unless another rule denies it anyway.

    A condition in Python runs on the event loop's thread, so it must not block. It gets a copy of the facts.
    What it returns, or what its awaitable gives, must be True or False.

    Args:
        rules: the rules, with names of their own. Texts of conditions are compiled here.
        default: ``allow``, ``ask`` or ``deny``.
        repeat_block: refuse the very call that a person rejected in this run.
        seconds: seconds that one Python condition may take, from when its own check starts.
        clock: seconds that only grow; for tests.

    Raises:
        DefinitionError: a rule cannot be used; the message names it and says what to change.
    """

    def __init__(
        self,
        rules: Iterable[Rule] = (),
        default: VerdictName = "ask",
        repeat_block: bool = False,  # noqa: FBT001, FBT002  # a promise of the public face
        *,
        seconds: float = GUARD_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not seconds > 0:
            raise DefinitionError(f"a policy's seconds must be above 0, got {seconds!r}")
        rule_set = RuleSet(tuple(rules), default, repeat_block)
        self.default: VerdictName = rule_set.default
        self.repeat_block = rule_set.repeat_block
        """Whether the very call that a person rejected in a run is refused; the gateway sees to it."""
        self.seconds = seconds
        self._clock = clock
        materials = [rule.material(_condition_material(rule.when)) for rule in rule_set.rules]
        self.revision = digest(
            {"default": default, "repeat_block": repeat_block, "rules": cast("list[JsonValue]", materials)}
        )
        """The digest of the rules: equal in every process that has the same ones."""
        self._bound = tuple(
            self._bind(rule, digest(material)) for rule, material in zip(rule_set.rules, materials, strict=True)
        )
        self._plans: dict[str, tuple[_Bound, ...]] = {}
        self._unmatched = tuple(
            unmatched(default, self.revision, read_only=read_only, needs_approval=needs_approval)
            for read_only in (False, True)
            for needs_approval in (False, True)
        )

    @classmethod
    def from_toml(cls, path: str | PathLike[str], *, seconds: float = GUARD_SECONDS) -> Policy:
        """The policy that a TOML file holds.

        Raises:
            DefinitionError: the file cannot be used; the message names file and rule and says what to change.
        """
        rule_set: RuleSet = resolve("policy", "toml")(path)
        try:
            return cls(rule_set.rules, rule_set.default, rule_set.repeat_block, seconds=seconds)
        except DefinitionError as error:
            raise DefinitionError(f"{path}: {error}") from error

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules, in their order."""
        return tuple(bound.rule for bound in self._bound)

    def __repr__(self) -> str:
        return f"Policy({len(self._bound)} rules, default={self.default!r}, revision={self.revision[:12]})"

    def judge(self, facts: Facts, *, read_only: bool, needs_approval: bool) -> Verdict | Awaitable[Verdict]:
        """What becomes of a call; an awaitable of it only where a Python condition has to be awaited.

        Never raises for what a rule does: an error is part of the verdict, which then refuses.

        Args:
            facts: what conditions see.
            read_only: how the tool is marked.
            needs_approval: whether the tool asks for an approval of this call.
        """
        name = cast("str", facts.tool["name"])
        plan = self._plans.get(name)
        if plan is None:
            plan = self._plan(name)
        otherwise = self._unmatched[2 * read_only + needs_approval]
        if not plan:
            return otherwise
        steps = self._walk(plan, facts, otherwise)
        try:
            pending = next(steps)
        except StopIteration as end:
            return cast("Verdict", end.value)
        return self._finish(steps, pending)

    async def evaluate(self, facts: Facts) -> tuple[RuleCheck, ...]:
        """What each rule says of a call, in the order of the rules; none is passed over."""
        checks = []
        for bound in self._bound:
            rule = bound.rule
            if not rule.covers(cast("str", facts.tool["name"])):
                checks.append(RuleCheck(rule.name, rule.then, "other tool"))
                continue
            answer = self._ask(bound, facts)
            if isinstance(answer, _Pending):
                answer = await self._settled(answer)
            if isinstance(answer, str):
                checks.append(RuleCheck(rule.name, rule.then, "error", answer))
            else:
                checks.append(RuleCheck(rule.name, rule.then, "matched" if answer else "not matched"))
        return tuple(checks)

    def _bind(self, rule: Rule, rule_digest: str) -> _Bound:
        verdict = Verdict(
            rule.then,
            rule.name,
            rule.reason,
            self.revision,
            None,
            rule.expires_in,
            rule_digest,
            rule.approvers,
            rule.not_caller,
        )
        if not isinstance(rule.when, str):
            return _Bound(rule, rule.when, rule.when is not None, verdict)
        try:
            check: Condition = resolve("policy", "cel")(rule.when)
        except DefinitionError as error:
            raise DefinitionError(f"rule {rule.name!r}: {error}") from error
        return _Bound(rule, check, in_python=False, verdict=verdict)

    def _plan(self, name: str) -> tuple[_Bound, ...]:
        """The rules for a tool: those that deny first, since the first match among them ends the matter."""
        covering = [bound for bound in self._bound if bound.rule.covers(name)]
        if len(self._plans) >= _PLANS:
            self._plans.clear()
        plan = self._plans[name] = tuple(sorted(covering, key=lambda bound: bound.rule.then != "deny"))
        return plan

    def _walk(self, plan: tuple[_Bound, ...], facts: Facts, otherwise: Verdict) -> _Steps:
        """Asks the rules; yields what must be awaited and is sent the answer."""
        found = []
        for bound in plan:
            answer = True if bound.check is None else self._ask(bound, facts)
            if isinstance(answer, _Pending):
                answer = cast("bool | str", (yield answer))
            if answer is True:
                found.append(bound.verdict)
                if bound.rule.then == "deny":
                    break
            elif answer is not False:
                found.append(self._failed(bound.rule.name, answer))
        return strictest(found, otherwise)

    def _failed(self, rule: str, error: str) -> Verdict:
        return Verdict("deny", rule, None, self.revision, error)

    async def _finish(self, steps: _Steps, pending: _Pending) -> Verdict:
        while True:
            answer = await self._settled(pending)
            try:
                pending = steps.send(answer)
            except StopIteration as end:
                return cast("Verdict", end.value)

    def _ask(self, bound: _Bound, facts: Facts) -> bool | str | _Pending:
        """The answer of one rule: True, False, the text of an error, or what has to be awaited for it."""
        check = bound.check
        if check is None:
            return True
        if not bound.in_python:
            try:
                answer = check(facts)
            except Exception as error:  # noqa: BLE001  # whatever is wrong with a rule refuses the call
                return _told(error)
            return answer if isinstance(answer, bool) else _junk(answer)
        started = self._clock()
        try:
            answer = check(_copied(facts))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001  # as above; a CancelledError that it raises is its own
            return _told(error)
        if inspect.isawaitable(answer):
            return _Pending(answer, started)
        return self._in_time(answer, started)

    def _in_time(self, answer: object, started: float) -> bool | str:
        if self._clock() - started > self.seconds:
            return self._too_late()
        return answer if isinstance(answer, bool) else _junk(answer)

    def _too_late(self) -> str:
        return f"the condition took longer than {self.seconds:g} s, so its answer does not count"

    async def _settled(self, pending: _Pending) -> bool | str:
        """The answer, in time; what still runs at the limit is cancelled and not waited for."""
        task = asyncio.ensure_future(_awaited(pending.answer))
        left = self.seconds - (self._clock() - pending.started)
        try:
            await asyncio.wait({task}, timeout=max(left, 0))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            task.add_done_callback(_looked_at)
            task.cancel()
            return self._too_late()
        if task.cancelled():
            return "the condition was cancelled by itself"
        error = task.exception()
        return _told(error) if error is not None else self._in_time(task.result(), pending.started)


async def _awaited(answer: Awaitable[object]) -> object:
    return await answer


def _looked_at(task: asyncio.Future[object]) -> None:
    if not task.cancelled():
        task.exception()  # read, so that asyncio does not report it as forgotten: the call is refused already


_ALLOWED = Verdict("allow", None, None, None)
_ASKED = Verdict("ask", None, None, None)


def no_policy(read_only: bool, needs_approval: bool) -> Verdict:  # noqa: ARG001, FBT001  # the form of `judge`
    """The verdict for an agent without a policy: ask for a tool that needs approval, else allow."""
    return _ASKED if needs_approval else _ALLOWED


def _copied(facts: Facts) -> Facts:
    """Facts for somebody's function: what it changes in them changes nothing that runs or is on record."""
    return Facts(
        cast("dict[str, JsonValue]", normal(facts.tool)),
        normal(facts.input),
        cast("dict[str, JsonValue]", normal(facts.caller)),
        cast("dict[str, JsonValue]", normal(facts.run)),
        cast("dict[str, JsonValue]", normal(facts.thread)),
    )


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001  # an exception whose text raises is still an error
        return type(error).__name__


def _junk(answer: object) -> str:
    return f"the condition gave {type(answer).__name__}, and it must give True or False"


_DEPTH = 5
"""How far a condition's own values are followed: a function that closes over a function, a list of lists."""


def _condition_material(when: str | Condition | None) -> JsonValue:
    return when if when is None or isinstance(when, str) else {"python": _function_material(when, 0)}


def _function_material(function: Any, depth: int) -> JsonValue:
    """What tells one Python condition from another, in every process alike: never an address, never a hash().

    Its name and its source; where there is no source its byte code, which differs between versions of Python.
    Defaults and what it closes over count too, as far as they are plain values.
    """
    if isinstance(function, functools.partial):
        arguments = [*function.args, *sorted(function.keywords.items())]
        return ["partial", _function_material(function.func, depth), _value_material(arguments, depth)]
    function = inspect.unwrap(getattr(function, "__func__", function))
    code = getattr(function, "__code__", None)
    if code is None:
        kind = type(function)
        call = getattr(kind.__call__, "__code__", None) and _function_material(kind.__call__, depth)
        return [kind.__module__, kind.__qualname__, getattr(function, "__qualname__", None), call]
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    defaults = [*(function.__defaults__ or ()), *sorted((function.__kwdefaults__ or {}).items())]
    return [
        function.__module__,
        function.__qualname__,
        _code_digest(function, code),
        _value_material(cells, depth),
        _value_material(defaults, depth),
    ]


def _value_material(value: object, depth: int) -> JsonValue:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if depth < _DEPTH and isinstance(value, (list, tuple)):
        return [_value_material(item, depth + 1) for item in value]
    if depth < _DEPTH and callable(value):
        return _function_material(value, depth + 1)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _code_digest(function: Callable[..., object], code: CodeType) -> str:
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        text = repr(_code_material(code))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def _code_material(code: CodeType) -> list[object]:
    constants = [_code_material(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code, code.co_names, code.co_varnames, constants]

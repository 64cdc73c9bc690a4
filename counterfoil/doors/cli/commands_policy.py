"""`policy test`: what a policy would have decided on calls that are on record."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, cast

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from counterfoil import Policy
from counterfoil.core.approval import input_digest
from counterfoil.core.call import DEFAULT_CALLER, Caller
from counterfoil.core.differences import verdict_words
from counterfoil.core.entries import ERASED
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.outcome import Denied
from counterfoil.core.parts import call_part
from counterfoil.core.policy import Facts
from counterfoil.core.record import CallState, RunState
from counterfoil.core.turn import moment, thread_kind
from counterfoil.core.verdict import Verdict
from counterfoil.doors.cli.common import PAGE, Session, command, find_run
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.load import load_agents
from counterfoil.doors.cli.plain import escaped, line
from counterfoil.doors.cli.view import counted, print_table, short_ids
from counterfoil.model import json_object
from counterfoil.run import Run
from counterfoil.runtime import Runtime
from counterfoil.tool import RESERVED_NAMES, Tool

__all__ = ["app"]

app = typer.Typer(help="Try policies on calls that are on record.")

NO_RULE: Final = "(no rule)"
VERDICTS: Final = ("allow", "ask", "deny")
SHOWN: Final = 300
"""Characters of an input or an error that are shown."""
_LET_THROUGH: Final[dict[str, JsonValue]] = {"verdict": "allow"}


@dataclass(frozen=True, slots=True)
class Judged:
    """One call of the record, and what the policy says of it now."""

    run_id: str
    call_id: str
    facts: Facts
    verdict: Verdict
    before: dict[str, JsonValue] | None
    """The verdict on record; None where no policy and no person was asked, and the call was let through."""

    @property
    def differs(self) -> bool:
        """The policy would have decided otherwise."""
        return self.verdict.verdict != (self.before or _LET_THROUGH)["verdict"]

    @property
    def then(self) -> str:
        """What was decided, in words."""
        return "allow (no policy)" if self.before is None else verdict_words(self.before)

    @property
    def now(self) -> str:
        """What the policy says, in words."""
        return verdict_words(self.verdict.to_json())

    def to_json(self) -> dict[str, JsonValue]:
        """The judgement by field."""
        before = self.before or {}
        return {
            "runId": self.run_id,
            "callId": self.call_id,
            "toolName": self.facts.tool["name"],
            "step": self.facts.run["step"],
            "input": self.facts.input,
            "caller": cast("JsonValue", self.facts.caller),
            "run": cast("JsonValue", self.facts.run),
            "verdict": self.verdict.verdict,
            "rule": self.verdict.rule,
            "error": self.verdict.error,
            "recorded": before.get("verdict", "allow"),
            "recordedRule": before.get("rule"),
            "recordedRevision": before.get("revision"),
            "differs": self.differs,
        }


@dataclass(slots=True)
class Tally:
    """What a rule did."""

    matched: int = 0
    decided: Counter[str] = field(default_factory=Counter)
    errors: int = 0


@command(app, "test")
async def policy_test(
    session: Session,
    file: Annotated[str, typer.Argument(metavar="FILE", help="A policy in TOML.")],
    run: Annotated[
        list[str] | None, typer.Argument(metavar="RUN …", help="Of these runs, each call shown; of all unless given.")
    ] = None,
    *,
    agents: Annotated[
        list[str] | None,
        typer.Option(
            "--agents",
            metavar="MODULE",
            help="Where the tools are marked read_only and the like; repeatable.",
        ),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Of every run of the tenant, as without RUN.")] = False,
) -> int:
    """What a policy would have decided on recorded calls, beside what was decided; 1 where that differs.

    A row for each rule, then the calls that differ. Conditions see the input, the caller and the time of then. The
    record does not hold how tools are marked. Without --agents a tool counts as read_only, idempotent and
    destructive in nothing, and as needing no approval.
    """
    if all_ and run:
        raise Stop("--all takes every run; leave it out, or the runs")
    test = _Test(
        Policy.from_toml(file),
        {t.name: t for spec in agents or () for agent in load_agents(spec) for t in agent.tools},
        keep=bool(run) or session.json,
    )
    async with session.reader() as runtime:
        async for found in _runs(session, runtime, run or []):
            await test.take(found)
    if session.json:
        session.out.data(_as_json(test))
    else:
        _print(session, test, each=bool(run))
        if not test.tools and test.count:
            session.out.note("tools counted as unmarked; --agents MODULE says which are read_only", style="dim")
    return Code.FAILED if test.differing else Code.DONE


class _Test:
    """A policy on the calls of one run after another; holds the calls that differ, and with ``keep`` all."""

    def __init__(self, policy: Policy, tools: dict[str, Tool], *, keep: bool) -> None:
        self.policy = policy
        self.tools = tools
        self.keep = keep
        self.tallies = {rule.name: Tally() for rule in policy.rules} | {NO_RULE: Tally()}
        self.judged: list[Judged] = []
        self.count = self.differing = self.left_out = 0

    async def take(self, run: Run) -> None:
        """Judge the calls of a run that came as far as a policy."""
        state = run._fold.record.runs[run.id]  # as view.of_run
        rejected: set[str] = set()
        refused: set[str] = set()
        step = -1
        for number, call in enumerate(state.calls):
            if call.turn.step != step:
                step, rejected = call.turn.step, rejected | refused
            value = _input(call, imported=run.imported is not None)
            if value is None:
                self.left_out += 1
                continue
            digest = input_digest(call.record.tool_name, value)
            if call.decided is not None and call.decided.decision.choice == "reject":
                refused.add(digest)
            facts = _facts(run, state, call, number, loads(value), self.tools.get(call.record.tool_name))
            verdict = await self._verdict(facts, repeated=digest in rejected)
            one = Judged(run.id, call.record.call_id, facts, verdict, _recorded(call))
            self.count += 1
            self.differing += one.differs
            if self.keep or one.differs:
                self.judged.append(one)

    async def _verdict(self, facts: Facts, *, repeated: bool) -> Verdict:
        policy, tallies = self.policy, self.tallies
        for check in await policy.evaluate(facts):
            tallies[check.rule].matched += check.result == "matched"
            tallies[check.rule].errors += check.result == "error"
        tool = self.tools.get(cast("str", facts.tool["name"]))
        asks = tool is not None and tool.needs_approval is not False
        answer = policy.judge(facts, read_only=tool is not None and tool.read_only, needs_approval=asks)
        verdict = answer if isinstance(answer, Verdict) else await answer
        tallies[verdict.rule or NO_RULE].decided[verdict.verdict] += 1
        if repeated and policy.repeat_block and verdict.verdict != "deny":
            return Verdict("deny", "repeat_block", None, policy.revision)
        return verdict


async def _runs(session: Session, runtime: Runtime, names: list[str]) -> AsyncIterator[Run]:
    for name in names:
        yield await find_run(session, runtime, name)
    before: str | None = None
    some = False
    while not names:
        page = await runtime.runs(limit=PAGE, before=before, tenant=session.tenant)
        for row in page:
            some = True
            yield await runtime.get(row.run_id, tenant=session.tenant)
        if len(page) < PAGE:
            if not some:
                raise Stop("there is no run yet whose calls could be judged", Code.NOT_FOUND)
            return
        before = page[-1].run_id


def _input(call: CallState, *, imported: bool) -> bytes | None:
    """The effective input as JSON; None of a call that no policy judged, or whose input was erased.

    Of an imported call nobody knows who judged it: it counts with what the model wrote, where that is an object.
    """
    if imported:
        wrote = json_object(call.record.raw)
        return None if wrote is None else dumps(wrote)
    if call.start is None and call.waiting is None and (call.result is None or call.result.decision is None):
        return None  # open, refused before the policy, or skipped
    if call.record.tool_name in RESERVED_NAMES or call.record.raw == ERASED:
        return None
    part = call_part(call)
    return dumps(part.effective_input)


def _recorded(call: CallState) -> dict[str, JsonValue] | None:
    outcome = call.result.result.outcome if call.result is not None else None
    if isinstance(outcome, Denied) and outcome.by == "policy" and outcome.rule == "repeat_block":
        return Verdict("deny", outcome.rule, None, None).to_json()
    decision = call_part(call).decision
    if isinstance(decision, dict):
        return decision
    if call.waiting is not None and call.waiting.approval.kind == "approval":
        return Verdict("ask", None, None, None).to_json()
    return None


def _facts(
    run: Run, state: RunState, call: CallState, number: int, value: JsonValue, tool: Tool | None
) -> Facts:  # what it is made of
    """What conditions would have seen; ``number``: the calls of the run before this one."""
    marks: dict[str, JsonValue] = {"read_only": False, "idempotent": False, "destructive": False}
    if tool is not None:
        marks = {name: tool.facts[name] for name in marks}
    at = _judged_at(call)
    caller: Caller = state.head.caller if state.head else DEFAULT_CALLER
    return Facts(
        {"name": call.record.tool_name, **marks},
        value,
        caller.to_json(),
        {
            "id": run.id,
            "agent": run.agent,
            "step": call.turn.step,
            "calls": number,
            "hour": at.hour,
            "weekday": at.weekday(),
            "parent": state.head.parent if state.head else None,
            "depth": sum(1 for _ in state.above()),
        },
        {"id": call.turn.thread_id, "kind": thread_kind(call.turn.thread_id)},
    )


def _judged_at(call: CallState) -> datetime:
    entry = call.start or call.waiting or call.result or call.turn
    return moment(entry.at)


def _as_json(test: _Test) -> dict[str, JsonValue]:
    return {
        "revision": test.policy.revision,
        "calls": test.count,
        "differing": test.differing,
        "leftOut": test.left_out,
        "rules": [
            {
                "rule": None if name == NO_RULE else name,
                "matched": tally.matched,
                "errors": tally.errors,
                **{verdict: tally.decided[verdict] for verdict in VERDICTS},
            }
            for name, tally in test.tallies.items()
        ],
        "judged": [one.to_json() for one in test.judged],
    }


def _print(session: Session, test: _Test, *, each: bool) -> None:
    console = session.out.console
    then = {rule.name: rule.then for rule in test.policy.rules} | {NO_RULE: test.policy.default}
    print_table(
        console,
        ("rule", "says", "matched", *VERDICTS, "errors"),
        [
            (
                name,
                then[name],
                None if name == NO_RULE else tally.matched,
                *(tally.decided[verdict] for verdict in VERDICTS),
                tally.errors or None,
            )
            for name, tally in test.tallies.items()
        ],
    )
    ids = short_ids([one.run_id for one in test.judged])
    shown = [one for one in test.judged if each or one.differs]
    for one in shown:
        _print_call(console, one, ids[one.run_id])
    left_out = f"; {test.left_out} that came to no policy left out" if test.left_out else ""
    differ = f"{test.differing or 'none'} {'differs' if test.differing == 1 else 'differ'} from the record"
    style = "red" if test.differing else "green"
    console.print(
        Text(f"\n{'✗' if test.differing else '✓'} {counted(test.count, 'call')}, {differ}{left_out}", style=style)
    )


def _print_call(console: Console, one: Judged, run_id: str) -> None:
    tool = line(str(one.facts.tool["name"]), 100)
    sign, style = ("≠", "yellow") if one.differs else ("=", "dim")
    console.print(
        Text(f"\n{sign} {tool} ({line(one.call_id, 100)}), run {run_id}, step {one.facts.run['step']}", style=style)
    )
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=5)
    table.add_column(overflow="fold", ratio=1)
    table.add_row("", Text("input", style="dim"), Text(line(escaped(dumps(one.facts.input).decode()), SHOWN)))
    table.add_row("", Text("then", style="dim"), Text(line(one.then)))
    error = f": {one.verdict.error}" if one.verdict.error else ""
    table.add_row("", Text("now", style="dim"), Text(line(f"{one.now}{error}", SHOWN)))
    console.print(table)

"""`policy test`: what a policy would have decided on calls that are on record."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Final, cast

import typer
from rich.text import Text

from counterfoil import Policy
from counterfoil.core.call import DEFAULT_CALLER, Caller
from counterfoil.core.jsontext import JsonValue, loads
from counterfoil.core.parts import call_part
from counterfoil.core.policy import Facts
from counterfoil.core.record import CallState, RunState
from counterfoil.core.turn import moment, thread_kind
from counterfoil.doors.cli.common import PAGE, Session, command, find_run
from counterfoil.doors.cli.errors import Code, Stop
from counterfoil.doors.cli.load import load_agents
from counterfoil.doors.cli.view import counted, print_table, short_ids
from counterfoil.run import Run
from counterfoil.runtime import Runtime
from counterfoil.tool import Tool

__all__ = ["app"]

app = typer.Typer(help="Try policies on calls that are on record.")

NO_RULE: Final = "(no rule)"
VERDICTS: Final = ("allow", "ask", "deny")


@dataclass(frozen=True, slots=True)
class Judged:
    """One call of the record, and what the policy says of it now."""

    run_id: str
    call_id: str
    tool_name: str
    verdict: str
    rule: str | None
    error: str | None
    before: str | None
    """The verdict on record; None where the call was never judged."""

    @property
    def differs(self) -> bool:
        """The policy would have decided otherwise."""
        return self.before is not None and self.before != self.verdict

    def to_json(self) -> dict[str, JsonValue]:
        """The judgement by field."""
        return {
            "runId": self.run_id,
            "callId": self.call_id,
            "toolName": self.tool_name,
            "verdict": self.verdict,
            "rule": self.rule,
            "error": self.error,
            "recorded": self.before,
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
        list[str] | None, typer.Argument(metavar="RUN …", help="Of these runs; of all unless given.")
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
) -> int:
    """What a policy would have decided on recorded calls: a row for each rule, then the calls that differ.

    The record does not hold how tools are marked. Without --agents a tool counts as read_only, idempotent and
    destructive in nothing, and as needing no approval.
    """
    policy = Policy.from_toml(file)
    tools = {t.name: t for spec in agents or () for agent in load_agents(spec) for t in agent.tools}
    tallies = {rule.name: Tally() for rule in policy.rules} | {NO_RULE: Tally()}
    judged: list[Judged] = []
    skipped = 0
    async with session.reader() as runtime:
        for found in await _runs(session, runtime, run or []):
            state = found._fold.record.runs[found.id]  # as view.of_run
            for call in state.calls:
                tool = tools.get(call.record.tool_name)
                facts = _facts(found, state, call, tool)
                if facts is None:
                    skipped += 1
                    continue
                judged.append(await _judge(policy, facts, found, call, tool=tool, tallies=tallies))
    if session.json:
        session.out.data(_as_json(policy, tallies, judged, skipped))
    else:
        _print(session, policy, tallies, judged, skipped)
        if not tools and judged:
            session.out.note("tools counted as unmarked; --agents MODULE says which are read_only", style="dim")
    return Code.DONE


async def _runs(session: Session, runtime: Runtime, names: list[str]) -> list[Run]:
    if names:
        return [await find_run(session, runtime, name) for name in names]
    ids: list[str] = []
    before: str | None = None
    while True:
        page = await runtime.runs(limit=PAGE, before=before, tenant=session.tenant)
        ids += [row.run_id for row in page]
        if len(page) < PAGE:
            break
        before = page[-1].run_id
    if not ids:
        raise Stop("there is no run yet whose calls could be judged", Code.NOT_FOUND)
    return [await runtime.get(run_id, tenant=session.tenant) for run_id in reversed(ids)]


def _facts(run: Run, state: RunState, call: CallState, tool: Tool | None) -> Facts | None:
    """What conditions would have seen; None of a call whose input was never JSON, which no policy judges."""
    part = call_part(call)
    value = part.effective_input if part.effective_input is not None else part.input
    if value is None:
        try:
            value = loads(part.raw_input or "{}")
        except ValueError:
            return None
    marks: dict[str, JsonValue] = {"read_only": False, "idempotent": False, "destructive": False}
    if tool is not None:
        marks = {name: tool.facts[name] for name in marks}
    at = _judged_at(call)
    caller: Caller = state.head.caller if state.head else DEFAULT_CALLER
    return Facts(
        {"name": part.tool_name, **marks},
        value,
        caller.to_json(),
        {
            "id": run.id,
            "agent": run.agent,
            "step": part.step_index,
            "calls": state.calls.index(call),
            "hour": at.hour,
            "weekday": at.weekday(),
        },
        {"id": call.turn.thread_id, "kind": thread_kind(call.turn.thread_id)},
    )


def _judged_at(call: CallState) -> datetime:
    entry = call.start or call.waiting or call.result or call.turn
    return moment(entry.at)


async def _judge(
    policy: Policy, facts: Facts, run: Run, call: CallState, *, tool: Tool | None, tallies: dict[str, Tally]
) -> Judged:
    for check in await policy.evaluate(facts):
        tallies[check.rule].matched += check.result == "matched"
        tallies[check.rule].errors += check.result == "error"
    asks = tool is not None and tool.needs_approval is not False
    answer = policy.judge(facts, read_only=tool is not None and tool.read_only, needs_approval=asks)
    verdict = answer if not hasattr(answer, "__await__") else await answer
    tallies[verdict.rule or NO_RULE].decided[verdict.verdict] += 1
    before = call_part(call).decision
    name = cast("str | None", before.get("verdict")) if isinstance(before, dict) else None
    return Judged(
        run.id, call.record.call_id, call.record.tool_name, verdict.verdict, verdict.rule, verdict.error, name
    )


def _as_json(policy: Policy, tallies: dict[str, Tally], judged: list[Judged], skipped: int) -> dict[str, JsonValue]:
    return {
        "revision": policy.revision,
        "calls": len(judged),
        "unreadable": skipped,
        "rules": [
            {
                "rule": None if name == NO_RULE else name,
                "matched": tally.matched,
                "errors": tally.errors,
                **{verdict: tally.decided[verdict] for verdict in VERDICTS},
            }
            for name, tally in tallies.items()
        ],
        "judged": [one.to_json() for one in judged],
    }


def _print(session: Session, policy: Policy, tallies: dict[str, Tally], judged: list[Judged], skipped: int) -> None:
    console = session.out.console
    then = {rule.name: rule.then for rule in policy.rules} | {NO_RULE: policy.default}
    print_table(
        console,
        ("rule", "says", "matched", *VERDICTS, "errors"),
        [
            (
                name,
                then[name],
                "" if name == NO_RULE else str(tally.matched),
                *(str(tally.decided[verdict]) for verdict in VERDICTS),
                str(tally.errors or ""),
            )
            for name, tally in tallies.items()
        ],
    )
    differing = [one for one in judged if one.differs or one.error]
    unreadable = f", {skipped} without a JSON input left out" if skipped else ""
    console.print()
    differ = f"{len(differing)} {'differs' if len(differing) == 1 else 'differ'} from the record"
    console.print(Text(f"{counted(len(judged), 'call')}, {differ}{unreadable}"))
    if differing:
        ids = short_ids([one.run_id for one in differing]) | short_ids([one.call_id for one in differing])
        print_table(console, ("run", "call", "tool", "recorded", "now", "by"), list(_differences(differing, ids)))


def _differences(judged: list[Judged], ids: dict[str, str]) -> Iterator[tuple[str, ...]]:
    for one in judged:
        why = one.rule or NO_RULE
        yield (
            ids[one.run_id], ids[one.call_id], one.tool_name, one.before or "", one.verdict,
            f"{why}: {one.error}" if one.error else why,
        )  # fmt: skip  # the columns of a row

"""What one turn's calls wait for: the gateway's word, a person's, or what a crash left open (contract 2, 3 and 7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from datetime import datetime
from typing import Any, cast

from counterfoil.core import words
from counterfoil.core.approval import Approval, ApprovalKind, input_digest
from counterfoil.core.call_entries import ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.content import Text
from counterfoil.core.entries import Entry, MessageEntry
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.limits import ATTEMPTS
from counterfoil.core.outcome import Cancelled, ErrorCode, Failed, ToolFailure
from counterfoil.core.record import CallState
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import seal
from counterfoil.core.turn import RUNS_NOTHING, AuthorType, author, moment
from counterfoil.core.verdict import Verdict
from counterfoil.driver import Driver
from counterfoil.ending import keep_apart, make_report, not_again, with_edit, without_end
from counterfoil.env import Asks, Env, Ready, Refused
from counterfoil.judge import (
    Word,
    cut_off,
    duplicates,
    edited_by,
    fail,
    judge,
    judged,
    out_of_budget,
    readmit,
    refuse,
    repeated,
)
from counterfoil.render import content_size
from counterfoil.store import Behind, KeptText
from counterfoil.team import child_id, thread_of


class Docket:
    """One turn's calls as they are judged. What is decided but not yet on record lies in the outbox."""

    def __init__(self, drive: Driver, env: Env, calls: list[CallState], *, fresh: bool = False) -> None:
        self.drive = drive
        self.env = env
        self.calls = calls
        self.ready: dict[int, Ready] = {}
        """Judged and not started, by index."""
        self.asks: dict[int, Asks] = {}
        """Waits to be asked, by index."""
        self.asked = not fresh
        """Some call may have waited for a person, or is about to; not so in a turn that is fresh."""
        self.outbox: list[Entry] = []
        self.reports: list[ToolErrorReport] = []
        self.kept: list[KeptText] = []

    def running(self, index: int) -> bool:
        """Whether a body of the call runs here."""
        raise NotImplementedError

    async def wait_again(self, call: CallState) -> None:
        """Go on waiting for the run that a call was handed to."""
        raise NotImplementedError

    def may_run(self, index: int) -> bool:
        """Whether an earlier attempt at the call, or the run that it waited for, may still run."""
        raise NotImplementedError

    def locked(self, index: int) -> None:
        """A lock was taken for this call."""
        raise NotImplementedError

    # judge

    def judge_new(self, calls: list[CallState], began: float) -> Coroutine[Any, Any, None] | None:
        """Judge calls that have nothing on record yet: at once where all may run, else by what it returns."""
        slow = self.drive.slow_judge or self.env.policy is not None
        if slow or len(calls) > 1 or calls[0].turn.stop in RUNS_NOTHING:
            return self._judge_new(calls, began)
        answer = judge(self.env, calls[0])
        if type(answer) is not Ready or answer.tool.waits:
            return self._judge_new(calls, began, answer)
        answer.began = began
        self.ready[calls[0].index] = answer
        return None

    async def _judge_new(self, calls: list[CallState], began: float, first: Word | None = None) -> None:
        """As `judge_new`; ``first`` is the gateway's word on the first call, if it was asked already."""
        repeats = duplicates(self.calls) if len(self.calls) > 1 else ()
        broken_off = calls[0].turn.stop in RUNS_NOTHING
        waits: list[CallState] = []
        slow = (self.drive.slow_judge or self.env.policy is not None) and len(calls) > 1
        for call in calls:
            if broken_off:
                await self.take(call, cut_off(call.record.tool_name, call.turn.stop), began)
            elif call.index in repeats:
                await self.take(call, repeated(call.record.tool_name), began)
            elif slow:
                waits.append(call)
            else:
                answer = first or judge(self.env, call)
                if type(answer) is Ready and not answer.tool.waits:
                    answer.began = began
                    self.ready[call.index] = answer
                else:
                    await self.take(call, await judged(answer), began)
        if waits:
            answers = await asyncio.gather(*(judged(judge(self.env, c)) for c in waits))
            for call, answer in zip(waits, answers, strict=True):
                await self.take(call, answer, began)

    @property
    def waits(self) -> bool:
        """Some call waits for a person, or is about to be asked about."""
        return bool(self.asks) or any(c.waiting is not None and c.result is None for c in self.calls)

    async def take(self, call: CallState, answer: Ready | Asks | Refused, began: float) -> None:
        """Act on the gateway's word."""
        if type(answer) is Ready and answer.tool.waits:
            answer = await self.env.team.route(self.env, call, answer)
        if type(answer) is Ready:
            answer.began = began
            self.ready[call.index] = answer
        elif type(answer) is Asks:
            self.asks[call.index] = answer
            self.asked = True
        else:
            await self.settle(call, cast("Refused", answer), began)

    async def settle(self, call: CallState, refused: Refused, began: float) -> None:
        """Put the end of a call whose body does not run into the outbox."""
        env = self.env
        result, start, by_human = refused.result, call.start, refused.author == "Human"
        if start is not None and not by_human:
            result = not_again(result)
        if isinstance(result.outcome, Failed):
            shown: JsonValue = call.record.raw
            if not refused.raw_input and refused.parsed is not None:
                shown = loads(refused.parsed)
            seconds = env.effects.clock() - began
            self.reports.append(await make_report(env, call, result, refused.error, shown, seconds))
        if start is not None and call.edits:
            result = with_edit(result, call.record.tool_name, start.effective)
        size, said = content_size(result.content), result.model_output
        kept: KeptText | None = None
        if by_human and size > env.limits.keep_apart_bytes:
            result, kept = keep_apart(result, env, call.record.call_id)
        if kept is not None:
            self.kept.append(kept)
        if by_human and call.waiting is not None and call.waiting.approval.kind == "question":
            self.outbox.append(self._on_question(call, call.waiting.approval, said, "Human", refused.human or ""))
        self.outbox.append(
            ResultEntry(
                **self._head(call),
                result=result,
                size=size,
                kept_id=None if kept is None else kept.id,
                kept_digest=None if kept is None else kept.digest,
                attempt=start.attempt if start else 0,
                started_at=start.at if start else None,
                over=not self.may_run(call.index) if start and without_end(result.outcome) else None,
                author_type=refused.author,
                author_name=refused.human or "",
                decision=refused.verdict.to_json() if refused.verdict else None,
                parsed=refused.parsed if refused.before is None else refused.before,
                effective=None if refused.before is None else refused.parsed,
            )
        )

    def _head(self, call: CallState) -> Any:
        return {
            "run_id": self.env.run_id, "thread_id": self.env.thread_id, "at": self.env.effects.now(),
            "step": call.turn.step, "index": call.index, "call_id": call.record.call_id,
            "tool_name": call.record.tool_name,
        }  # fmt: skip  # rows by what belongs together

    # ask

    def ask(self) -> None:
        """Open the approvals that may be open now."""
        one_by_one = self.drive.one_by_one
        if one_by_one and any(c.pending for c in self.calls):
            return
        for index in sorted(self.asks):
            asks, call = self.asks.pop(index), self.calls[index]
            waiting = self._waiting(call, "question" if asks.person else "approval", asks)
            self.outbox.append(waiting)
            if asks.person is not None:
                self.outbox.append(self._on_question(call, waiting.approval, None, "Agent", self.env.agent))
            if one_by_one:
                return

    def _on_question(
        self, call: CallState, approval: Approval, text: str | None, by: AuthorType, name: str
    ) -> MessageEntry:  # fmt: skip  # one row
        """What stands on the thread of a question to a person: the question (None), or the answer."""
        asked = cast("dict[str, str]", approval.effective_input)
        who = author("Human", approval.approvers[0], self.env.caller.tenant)
        return MessageEntry(
            run_id=self.env.run_id, thread_id=thread_of(words.ASK, who, child_id(self.env, call)),
            at=self.env.effects.now(), text=asked["question"] if text is None else text, author_type=by,
            author_name=name,
        )  # fmt: skip  # rows by what belongs together

    def _waiting(self, call: CallState, kind: ApprovalKind, asks: Asks | None) -> WaitingEntry:
        env = self.env
        now = env.effects.now()
        verdict: Verdict | None = None
        before = call.waiting.approval if call.waiting else None
        after = before.id if before else None
        if asks is not None:
            effective, parsed, verdict = asks.effective, asks.parsed, asks.verdict
            approvers = verdict.approvers or asks.tool.approvers
            not_user = env.caller.user if verdict.not_caller or asks.tool.not_caller else None
            if asks.person is not None:
                approvers, not_user, verdict = (asks.person.name,), None, None
        else:
            start = cast("StartEntry", call.start)
            effective, parsed = start.effective, start.parsed
            tool = env.tools.get(call.record.tool_name)
            # Whoever might not let it run may not let it run again.
            if before is not None:
                approvers, not_user = before.approvers, before.not_user
            else:
                approvers = tool.approvers if tool else ()
                not_user = env.caller.user if tool and tool.not_caller else None
        seconds = env.limits.approval_seconds if kind == "approval" else None
        if verdict is not None and verdict.expires_in is not None:
            seconds = verdict.expires_in
        shown = loads(effective)
        approval = Approval(
            id=env.effects.new_id(),
            kind=kind,
            run_id=env.run_id,
            call_id=call.record.call_id,
            tool_name=call.record.tool_name,
            input=shown if parsed is None else loads(parsed),
            effective_input=shown,
            digest=input_digest(call.record.tool_name, effective, after),
            rule=verdict.rule if verdict else None,
            reason=verdict.reason if verdict else None,
            requested_at=moment(now),
            expires_at=None if seconds is None else moment(now + int(seconds * 1_000_000)),
            after=after,
            agent=env.agent,
            tenant=env.caller.tenant,
            approvers=approvers,
            not_user=not_user,
            revision=verdict.revision if verdict else None,
        )
        return WaitingEntry(**self._head(call), approval=approval, decision=verdict.to_json() if verdict else None)

    # people

    async def take_decisions(self) -> None:
        """Act on decisions that came, and on approvals that expired."""
        now = moment(self.env.effects.now())
        expired = False
        for call in self.calls:
            if call.result is not None or call.waiting is None or call.in_flight or self._held(call.index):
                continue
            if call.decided is not None:
                await self.take(call, await readmit(self.env, call), self.env.effects.clock())
            elif call.waiting.approval.expires_at is not None and now >= call.waiting.approval.expires_at:
                expired = True
        if expired:
            await self._expire(now)

    async def _expire(self, now: datetime) -> None:
        """Settle the calls that nobody decided in time, unless another process did so before the last look."""
        await self.drive.refresh()
        held = self.outbox, self.reports
        self.outbox, self.reports = [], []
        for call in self.calls:
            approval = call.waiting.approval if call.pending and call.waiting is not None else None
            if approval is not None and approval.expires_at is not None and now >= approval.expires_at:
                effective = dumps(approval.effective_input)
                refused = fail(ErrorCode.APPROVAL_EXPIRED, call.record.tool_name, parsed=effective)
                await self.settle(call, refused, self.env.effects.clock())
        entries, reports = self.outbox, self.reports
        self.outbox, self.reports = held
        if entries:
            with contextlib.suppress(Behind):  # somebody wrote meanwhile, perhaps a decision: it is looked at first
                await self.drive.write(entries, reports=reports, exact=True)
        self.drive.wake()

    def _held(self, index: int) -> bool:
        return (
            index in self.ready
            or index in self.asks
            or self.running(index)
            or any(isinstance(e, ResultEntry) and e.index == index for e in self.outbox)
        )

    async def recover(self) -> None:
        """Take up calls whose bodies died with another process, and those that were never started."""
        new = [c for c in self.calls if c.state == "judged"]
        if new:
            await self._judge_new(new, self.env.effects.clock())
        for call in self.calls:
            if call.child is not None:
                await self.wait_again(call)
            if not call.in_flight:
                continue
            start = cast("StartEntry", call.start)
            tool = self.env.tools.get(call.record.tool_name)
            if start.safe and tool is not None and tool.safe and start.attempt < ATTEMPTS + tool.retries:
                try:
                    arguments = tool.schema.parse(start.effective.decode())
                except ValueError:
                    pass
                else:
                    verdict = Verdict("allow", None, None, None)
                    self.ready[call.index] = Ready(
                        tool, arguments, start.effective, start.parsed, verdict, attempt=start.attempt + 1,
                        edited_by=edited_by(call), lock=start.lock, began=self.env.effects.clock(),
                        attempts=("interrupted",),
                    )  # fmt: skip  # two rows
                    continue
            if tool is not None and tool.on_interrupted == "tell":
                code = ErrorCode.INTERRUPTED
                died = "the process died while the body ran"
                failure = ToolFailure(code, died, retryable=False, origin="gateway", body="unknown")
                text = words.failure(code, call.record.tool_name)
                await self.settle(call, refuse(Failed(failure), text, parsed=start.effective), self.env.effects.clock())
            else:
                self.outbox.append(self._waiting(call, "interrupted", None))
                self.asked = True

    # end early

    async def cancel_idle(self) -> None:
        """Settle every call that runs nothing, here or in a run below: cancelled, or with a limit's name, failed."""
        for call in self.calls:
            if call.result is not None or self.running(call.index):
                continue
            if any(isinstance(e, ResultEntry) and e.index == call.index for e in self.outbox):
                continue
            known = self.ready.pop(call.index, None) or self.asks.pop(call.index, None)
            if type(known) is Ready and known.locked:
                self.drive.locks.give(self.env.caller.tenant, self, call.index)
            await self._cancel(call, known)

    async def _cancel(self, call: CallState, known: Ready | Asks | None) -> None:
        why, began = cast("str", self.drive.stopping), self.env.effects.clock()
        ended = not self.may_run(call.index)
        if why != "cancel":
            await self.settle(call, out_of_budget(call, known, why, ended=ended), began)
            return
        text = words.cancelled(call.record.tool_name, started=call.start is not None, ended=ended)
        refused = Refused(seal((Text(text),), Cancelled(self._why())), author="Agent")
        await self.settle(call, refused, began)

    def _why(self) -> str | None:
        cancel = self.env.run.cancel
        return cancel.reason if cancel is not None else f"the limit of {self.drive.stopping} is reached"

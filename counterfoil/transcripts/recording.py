"""A transcript onto the record, as a run that has ended, and a run from the record as a transcript."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, cast

from counterfoil.core.call import DEFAULT_CALLER, Caller
from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import CallRecord, EndedEntry, Entry, MessageEntry, RunEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, loads, normal
from counterfoil.core.limits import DEFAULT_LIMITS
from counterfoil.core.outcome import SUCCEEDED, Failed
from counterfoil.core.record import Record
from counterfoil.core.report import ToolErrorReport
from counterfoil.core.result import seal
from counterfoil.model import ModelCall, ModelTurn, StopReason
from counterfoil.render import content_size
from counterfoil.run import Run
from counterfoil.runtime import Runtime
from counterfoil.store import Lease, NewRun, StatusChange
from counterfoil.transcripts.forms import read_messages, write_messages
from counterfoil.transcripts.pairing import Waiting, repair
from counterfoil.transcripts.ui import told_runs, ui_messages
from counterfoil.transcripts.values import Answered, Part, Reply, Said, Transcript, failed

AGENT: Final = "imported"
"""The agent of an imported run, unless one is named."""
NOBODYS: Final = ":import"
"""A pool that no worker serves, so that none goes on with a run of which a crash left the beginning alone."""


async def import_messages(
    runtime: Runtime,
    messages: object,
    *,
    format: str | None = None,
    agent: str = AGENT,
    caller: Caller | None = None,
) -> Run:
    """Put a conversation from elsewhere on record: as one run that has ended, in an interaction of its own.

    It is repaired first, see `repair`; what was changed is on record, in ``run.imported["repairs"]``. To go on with
    it, start an agent with ``interaction=run.interaction_id``.

    What a transcript does not tell is not made up. Times are those of the import; a call has no start, attempt or
    duration, no policy judged it, and a result counts as succeeded unless the form says that the call failed. A run
    that does not end with an answer is ``ended_by`` ``"import"``.

    Args:
        runtime: an open one, on whose store it is recorded.
        messages: as for `read_messages`, or a `Transcript`.
        format: one of `FORMATS`; None: as the messages look.
        agent: the name that the run has as its agent's; none has to be registered.
        caller: whose run it is.

    Raises:
        DefinitionError: the messages do not have that form; the text names the message.
        UsageError: the runtime is not open.
    """
    runtime._check()
    given = messages if isinstance(messages, Transcript) else read_messages(messages, format)
    transcript = repair(given)
    caller = caller or DEFAULT_CALLER
    effects = runtime.effects
    run_id, interaction_id = effects.new_id(), effects.new_id()
    made = _Making(transcript, run_id, effects.now(), runtime)
    head = RunEntry(
        run_id=run_id, at=made.at, agent=agent, caller=caller, limits=DEFAULT_LIMITS,
        imported={
            "format": transcript.format, "source": transcript.source, "instructions": transcript.instructions,
            "repairs": [one.to_json() for one in transcript.repairs],
        },
    )  # fmt: skip  # rows by what belongs together
    entries, failures = made.entries()
    row, _ = await runtime.store.create(
        NewRun(
            tenant=caller.tenant, run_id=run_id, interaction_id=interaction_id, new_interaction=True, agent=agent,
            entries=[head], created_at=made.at, owner=runtime.owner, pool=NOBODYS,
        )
    )  # fmt: skip  # as above
    ended = cast("EndedEntry", entries[-1])
    reports = [
        ToolErrorReport(
            caller.tenant, caller, interaction_id, "main", run_id, e.step, e.call_id, e.tool_name, _parsed(raw),
            failed.failure, failed.failure.code, e.result.model_output, 0.0, made.at,
        )
        for e, raw, failed in failures
    ]  # fmt: skip  # as above
    lease = Lease(caller.tenant, run_id, interaction_id, row.epoch)
    await runtime.store.commit(lease, entries, change=StatusChange("completed", ended.ended_by), reports=reports)
    return await runtime.get(run_id, tenant=caller.tenant)


def _parsed(raw: str) -> JsonValue:
    try:
        return loads(raw)
    except ValueError:
        return raw


@dataclass(slots=True)
class _Making:
    """The entries of a run that a transcript amounts to."""

    transcript: Transcript
    run_id: str
    at: int
    runtime: Runtime

    def entries(self) -> tuple[list[Entry], list[tuple[ResultEntry, str, Failed]]]:
        """All but the first, and the failures among them, each with the raw input of its call."""
        out: list[Entry] = []
        failures: list[tuple[ResultEntry, str, Failed]] = []
        used: set[str] = set()
        turn: TurnEntry | None = None
        waiting = Waiting[int]()
        step = 0
        for item in self.transcript.items:
            match item:
                case Said():
                    who = ("Human", "user") if item.role == "user" else ("System", "system")
                    out.append(
                        MessageEntry(
                            run_id=self.run_id, at=self.at, text=item.text, blocks=item.blocks,
                            author_type=who[0], author_name=who[1],  # type: ignore[arg-type]  # one of two
                        )
                    )  # fmt: skip  # as above
                case Reply():
                    turn = self._turn(item, step, used)
                    waiting = Waiting()
                    for index, call in enumerate(item.turn.calls):
                        waiting.add(call.id, index)
                    step += 1
                    out.append(turn)
                case Answered():
                    turn = cast("TurnEntry", turn)  # the transcript is whole
                    index = cast("int", waiting.take(item.call_id))
                    result = self._result(item, turn, index)
                    out.append(result)
                    if isinstance(result.result.outcome, Failed):
                        failures.append((result, turn.calls[index].raw, result.result.outcome))
        last = self.transcript.items[-1] if self.transcript.items else None
        answers = isinstance(last, Reply) and not last.turn.calls
        by = "answer" if answers else "import"
        answer = turn.text if answers and turn is not None else None
        out.append(EndedEntry(run_id=self.run_id, at=self.at, status="completed", ended_by=by, answer=answer))
        return out, failures

    def _turn(self, item: Reply, step: int, used: set[str]) -> TurnEntry:
        turn, calls = item.turn, []
        for call in turn.calls:
            call_id = call.id
            if not call_id or call_id in used:
                call_id = f"call_{self.runtime.effects.new_id()}"
            used.add(call_id)
            calls.append(CallRecord(call_id, call.id or None, call.name, call.arguments or ""))
        return TurnEntry(
            run_id=self.run_id, at=self.at, step=step, text=turn.text, calls=tuple(calls), stop=turn.stop,
            usage=turn.usage, model=turn.model or self.transcript.model, reasoning=turn.reasoning, thought=item.thought,
        )  # fmt: skip  # as above

    def _result(self, item: Answered, turn: TurnEntry, index: int) -> ResultEntry:
        call = turn.calls[index]
        outcome = SUCCEEDED if item.failure is None else Failed(item.failure)
        return ResultEntry(
            run_id=self.run_id, at=self.at, step=turn.step, index=index, call_id=call.call_id,
            tool_name=call.tool_name, result=seal(item.content, outcome), size=content_size(item.content),
        )  # fmt: skip  # as above


# ------------------------------------------------------------------------------------------------ export


def transcript_of(run: Run, *, conversation: bool = False) -> Transcript:
    """What the models of a run read and said, from the record.

    A result is what the model read of it: of one that is kept apart, the shortened text. A turn whose calls do not
    all have their results yet is left out, with what came after it.

    Args:
        run: on record, ended or not.
        conversation: with the runs of its interaction before it.
    """
    record: Record = run._fold.record
    wanted = told_runs(run, conversation=conversation)
    among, heads = set(wanted), [record.runs[one].head for one in wanted]
    marks = [head.imported for head in heads if head is not None and head.imported is not None]
    told = marks[0].get("instructions") if marks else None
    items: list[Part] = []
    models: list[str] = []
    for entry in record.thread(heads[-1].thread_id if heads[-1] is not None else None):
        if entry.run_id not in among:
            continue
        match entry:
            case MessageEntry():
                role: Literal["user", "system"] = "system" if entry.author_type == "System" else "user"
                items.append(Said(entry.text, role, blocks=entry.blocks))
            case TurnEntry():
                state = record.runs[entry.run_id]
                results = [state.call_ids[call.call_id].result for call in entry.calls]
                if None in results:
                    break
                given = Counter(call.provider_call_id for call in entry.calls)  # a turn may use one twice
                calls = tuple(
                    ModelCall(c.provider_call_id if given[c.provider_call_id] == 1 else c.call_id, c.tool_name, c.raw)
                    for c in entry.calls
                )
                stop = cast("StopReason", entry.stop)
                reply = ModelTurn(entry.text, calls, stop, entry.usage, entry.model, entry.reasoning)
                items.append(Reply(reply, thought=entry.thought))
                models.append(entry.model)
                items += [_answered(r, c) for r, c in zip(cast("Sequence[ResultEntry]", results), calls, strict=True)]
            case ResultEntry():
                pass  # with its turn
    return Transcript(tuple(items), told if isinstance(told, str) else "", next(filter(None, models), ""))


def _answered(entry: ResultEntry, call: ModelCall) -> Answered:
    result = entry.result
    failure = result.outcome.failure if isinstance(result.outcome, Failed) else None
    if failure is None and result.is_error:
        failure = failed(result.model_output)
    return Answered(call.id, result.content, failure, entry.tool_name)


def export_messages(
    run: Run | Transcript,
    format: str = "openai",
    *,
    conversation: bool = False,
) -> list[JsonValue]:
    """A run as messages of another program.

    Args:
        run: on record; or a `Transcript`, to turn one form into another.
        format: one of `FORMATS`, or ``ui``: messages of the AI SDK's user interface, of a run alone. On
            ``anthropic`` and ``openai-responses`` the instructions are no message and so not among them.
        conversation: with the runs of its interaction before it.

    Raises:
        DefinitionError: there is no such format, or the transcript is broken: `repair` it.
    """
    if format == "ui" and isinstance(run, Run):
        out = ui_messages(run, conversation=conversation)
    else:
        transcript = run if isinstance(run, Transcript) else transcript_of(run, conversation=conversation)
        out = write_messages(transcript, format)
    return cast("list[JsonValue]", normal(out))  # NaN in a call's arguments is no JSON

"""Where a replay differs from the record: two logs of one run, compared call by call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, cast

from counterfoil.core.call_entries import ResultEntry, StartEntry, WaitingEntry
from counterfoil.core.entries import EndedEntry, Entry, MessageEntry, TurnEntry
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.outcome import CODE_TABLE, Cancelled, ErrorCode, Failed
from counterfoil.core.result import ToolResult

DifferenceKind: TypeAlias = Literal[
    "offered", "gone", "new", "verdict", "revision", "input", "outcome", "text", "message", "end"
]
"""What can differ; the names are a promise."""

NOT_ON_RECORD = "(it would run now; it did not then, so no result of it is on record)"
"""Stands in a replay for the result of a body that never ran."""

CallKey: TypeAlias = "tuple[int, int]"
"""(step, index): our key of a call in its run."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One point in which the code of today would not do what is on record."""

    kind: DifferenceKind
    """``offered``: other tools, or other words of them. ``gone``, ``new``: the call's tool is offered no more, or now.
    ``verdict``: the policy decides otherwise. ``revision``: it is another policy. ``input``: the body would get another
    one. ``outcome``: the call ends otherwise. ``text``: it ends alike, and the model reads another text. ``message``:
    the loop tells the model something else. ``end``: the run ends otherwise."""
    step: int | None
    """0-based; None of the run as a whole."""
    call_id: str | None
    tool_name: str | None
    then: str
    """What is on record, in words."""
    now: str

    def to_json(self) -> dict[str, JsonValue]:
        """The difference by field, in camelCase."""
        return {
            "kind": self.kind,
            "step": self.step,
            "callId": self.call_id,
            "toolName": self.tool_name,
            "then": self.then,
            "now": self.now,
        }


@dataclass(slots=True)
class _Call:
    """What a log says of one call."""

    verdicts: list[str] = field(default_factory=list)
    """In words, each once in a row: what the policy said when it was new, and again after a decision."""
    revision: str | None = None
    input: bytes | None = None
    """The newest effective input."""
    result: ToolResult | None = None

    def judged(self, decision: JsonValue) -> None:
        told = verdict_words(decision)
        if told not in self.verdicts[-1:]:
            self.verdicts.append(told)
        if isinstance(decision, dict):
            self.revision = cast("str | None", decision.get("revision"))


class _Log:
    """One log of a run, by what can be compared."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.turns: dict[int, TurnEntry] = {}
        self.calls: dict[CallKey, _Call] = {}
        self.said: list[tuple[int, str]] = []
        """What the loop told the model in words of its own, with the step before it."""
        self.ended: EndedEntry | None = None
        for entry in entries:
            self._take(entry)

    def _take(self, entry: Entry) -> None:
        match entry:
            case TurnEntry():
                self.turns[entry.step] = entry
                self.calls |= {(entry.step, index): _Call() for index in range(len(entry.calls))}
            case MessageEntry(author_type="System"):
                self.said.append((max(self.turns, default=0), entry.text))
            case EndedEntry():
                self.ended = entry
            case WaitingEntry() if entry.approval.kind == "approval":
                call = self._call(entry.step, entry.index)
                call.judged(entry.decision or {"verdict": "ask"})
                call.input = dumps(entry.approval.effective_input)
            case StartEntry():
                call = self._call(entry.step, entry.index)
                # A start without a verdict had no policy, or a person's word; a further attempt is judged no more.
                if entry.decision is not None or not call.verdicts:
                    call.judged(entry.decision or {"verdict": "allow"})
                call.input = entry.effective
            case ResultEntry(kind="result"):
                call = self._call(entry.step, entry.index)
                if entry.decision is not None:
                    call.judged(entry.decision)
                call.input = entry.effective or entry.parsed or call.input
                call.result = entry.result
            case _:
                pass

    def _call(self, step: int, index: int) -> _Call:
        return self.calls.setdefault((step, index), _Call())

    @property
    def revision(self) -> str | None:
        """Of the newest policy that judged a call."""
        return next((c.revision for c in reversed(self.calls.values()) if c.revision is not None), None)


def verdict_words(decision: JsonValue) -> str:
    """A verdict as it is on record, in words: ``deny (rule no-refunds)``."""
    if not isinstance(decision, dict):
        return "not judged"
    name, rule = decision.get("verdict"), decision.get("rule")
    failed = " failed" if decision.get("error") else ""
    if rule:
        return f"{name} (rule {rule}{failed})"
    return f"{name} (no rule)" if decision.get("revision") else f"{name}"


def of_its_hour(result: ToolResult) -> bool:
    """A cancel came, or the time of the run was up: it ended so because of when that was, whatever the code."""
    outcome = result.outcome
    if isinstance(outcome, Failed):
        return outcome.failure.code == ErrorCode.LIMIT_REACHED and outcome.failure.message.endswith(" seconds")
    return isinstance(outcome, Cancelled)


def outcome_words(result: ToolResult | None) -> str:
    """How a call ended: ``succeeded``, ``failed 4003 INVALID_INPUT``."""
    if result is None:
        return "no result"
    outcome = result.outcome
    if not isinstance(outcome, Failed):
        return type(outcome).__name__.lower()
    row = CODE_TABLE.get(outcome.failure.code or 0)
    code = "" if outcome.failure.code is None else f" {int(outcome.failure.code)}"
    return f"failed{code}{f' {row.code.name}' if row else ''}"


def compare(
    recorded: Iterable[Entry], replayed: Iterable[Entry], offered: Mapping[int, Sequence[str]] | None = None
) -> list[Difference]:
    """Where the second log of a run differs from the first, in the order of the steps.

    Args:
        recorded: the run's entries, as they are on record.
        replayed: those of a replay with the same turns.
        offered: the names that the replay offered, by step; the record has their digest alone.
    """
    then, now = _Log(recorded), _Log(replayed)
    found = [*_policies(then, now)]
    before: tuple[str, str] | None = None
    for step, turn in sorted(then.turns.items()):
        again = now.turns.get(step)
        if again is None:
            break
        digests = turn.offered, again.offered
        if all(digests) and digests[0] != digests[1] and digests != before:
            names = ", ".join((offered or {}).get(step, ()))
            told = f"{digests[1][:12]}{f': {names}' if names else ''}"
            found.append(Difference("offered", step, None, None, digests[0][:12], told))
        before = digests
        for index in range(len(turn.calls)):
            found += _calls(then, now, (step, index))
    found += _said(then, now)
    return [*found, *_ends(then, now)]


def _policies(then: _Log, now: _Log) -> Iterator[Difference]:
    judged = all(any(c.verdicts for c in log.calls.values()) for log in (then, now))
    if judged and then.revision != now.revision:
        yield Difference("revision", None, None, None, *((log.revision or "no policy")[:12] for log in (then, now)))


def _calls(then: _Log, now: _Log, key: CallKey) -> Iterator[Difference]:
    step, index = key
    one, other = then.calls[key], now.calls[key]
    record, again = then.turns[step].calls[index], now.turns[step].calls[index]
    whose = step, record.call_id, record.tool_name
    if record.offered != again.offered:
        words = "offered", "not offered"
        yield Difference("gone" if record.offered else "new", *whose, *(words if record.offered else words[::-1]))
    if not one.verdicts and (one.result is None or of_its_hour(one.result)):
        return  # nobody knows what would have become of it then
    # Where one of them did not come as far as the policy, the outcome says what it came to.
    if one.verdicts and other.verdicts and one.verdicts != other.verdicts:
        yield Difference("verdict", *whose, *(", then ".join(call.verdicts) for call in (one, other)))
    if one.input is not None and other.input is not None and loads(one.input) != loads(other.input):
        yield Difference("input", *whose, one.input.decode(), other.input.decode())
    if one.result is None or other.result is None:
        return
    ended = outcome_words(one.result), outcome_words(other.result)
    text = other.result.model_output
    would = "it would run" if text == NOT_ON_RECORD else _with_text(ended[1], other.result)
    if text == NOT_ON_RECORD or ended[0] != ended[1]:
        yield Difference("outcome", *whose, _with_text(ended[0], one.result), would)
    elif one.result.model_output != text:
        yield Difference("text", *whose, one.result.model_output, text)


def _with_text(ended: str, result: ToolResult) -> str:
    return ended if ended == "succeeded" else f"{ended}: {result.model_output}"


def _said(then: _Log, now: _Log) -> Iterator[Difference]:
    for number in range(max(len(then.said), len(now.said))):
        one, other = (log.said[number] if number < len(log.said) else None for log in (then, now))
        if one != other:
            step, _ = one or other or (0, "")
            yield Difference("message", step, None, None, *(said[1] if said else "nothing" for said in (one, other)))


def _ends(then: _Log, now: _Log) -> Iterator[Difference]:
    last = max(then.turns, default=0)
    step = max(now.turns, default=0)
    if then.ended is None:
        if now.ended is not None and step < last:
            yield Difference("end", step, None, None, f"it goes on to step {last}", _end_words(now.ended))
        return
    if now.ended is None:
        yield Difference("end", step, None, None, _end_words(then.ended), "it goes on")
        return
    one, other = _end_words(then.ended), _end_words(now.ended)
    if (one, last) != (other, step):
        places = [f" after step {at}" if one == other else "" for at in (last, step)]
        yield Difference("end", step, None, None, one + places[0], other + places[1])


def _end_words(end: EndedEntry) -> str:
    """How a run ended, with what it gave."""
    call = f" of call {end.ended_run[1]} in step {end.ended_run[0]}" if end.ended_run else ""
    said = end.answer if end.answer is not None else end.reason
    output = "" if end.output is None and not end.null else f", output {dumps(end.output).decode()}"
    return f"{end.status} by {end.ended_by}{call}{output}{f': {said}' if said else ''}"

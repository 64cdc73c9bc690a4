"""Which result answers which call: of a history that may be broken, and of one that is whole."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from counterfoil.core.content import Text
from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.outcome import ErrorCode, ToolFailure
from counterfoil.core.words import no_result
from counterfoil.model import ModelCall
from counterfoil.transcripts.values import Answered, Part, Repair, RepairKind, Reply, Said, Transcript

_ANY: Final = re.compile(r"(?s).*\S.*")


T = TypeVar("T")


class Waiting(Generic[T]):
    """What stands for the calls of one turn until their results come, by the id of the call; one id, their order."""

    def __init__(self) -> None:
        self._by_id: dict[str | None, deque[T]] = {}
        self.left = 0

    def add(self, call_id: str | None, value: T) -> None:
        """A call waits."""
        self._by_id.setdefault(call_id or None, deque()).append(value)
        self.left += 1

    def take(self, call_id: str | None) -> T | None:
        """A result of a call with this id comes; None where none waits."""
        queue = self._by_id.get(call_id or None)
        if not queue:
            return None
        self.left -= 1
        return queue.popleft()

    @property
    def first(self) -> T:
        """One that still waits."""
        return next(queue[0] for queue in self._by_id.values() if queue)


def with_ids(items: Sequence[Part], most: int | None, legal: re.Pattern[str] = _ANY) -> Iterator[Part]:
    """The items with an id for each call that is unique among them, and the same in its result.

    Args:
        items: a conversation that is whole.
        most: characters of an id that the wire takes; a longer one is replaced, as is one that repeats.
        legal: what a whole id must match.

    Raises:
        DefinitionError: a result without its call, or a call without its result.
    """
    used: set[str] = set()
    open_ = Waiting[str]()
    for item in items:
        match item:
            case Answered():
                name = open_.take(item.call_id)
                if name is None:
                    raise DefinitionError(f"{item.place or 'a result'} has no call before it; repair() the transcript")
                yield replace(item, call_id=name)
                continue
            case _ if open_.left:
                raise DefinitionError(f"call {open_.first} has no result behind its turn; repair() the transcript")
            case Reply(turn):
                calls = []
                open_ = Waiting[str]()
                for call in turn.calls:
                    name = call.id or ""
                    number = len(used)
                    while not legal.fullmatch(name) or name in used or (most and len(name) > most):
                        name, number = f"call_{number}", number + 1
                    used.add(name)
                    open_.add(call.id, name)
                    calls.append(ModelCall(name, call.name, call.arguments))
                yield replace(item, turn=replace(turn, calls=tuple(calls)))
            case Said():
                yield item
    if open_.left:
        raise DefinitionError(f"call {open_.first} has no result; repair() the transcript")


@dataclass(slots=True)
class _Slot:
    """A call, and where its result stands."""

    at: int
    """Position of its turn."""
    index: int
    call: ModelCall
    answer: int | None = None


class _Nameless:
    """The calls of one turn that have no id, each to be taken once: of a tool first, else the next."""

    def __init__(self, slots: Iterable[_Slot]) -> None:
        self._all = deque(slot for slot in slots if not slot.call.id)
        self._by_tool: dict[str | None, deque[_Slot]] = {}
        for slot in self._all:
            self._by_tool.setdefault(slot.call.name, deque()).append(slot)
        self._taken: set[int] = set()

    def take(self, tool: str | None) -> _Slot | None:
        """The call for a result of this tool; None where all are taken."""
        for queue in (self._by_tool.get(tool), self._all):
            while queue:
                slot = queue.popleft()
                if slot.index not in self._taken:
                    self._taken.add(slot.index)
                    return slot
        return None


def repair(transcript: Transcript) -> Transcript:
    """The conversation with each call answered once, right behind its turn; what is whole stays exactly as it is.

    A result goes to the newest open call before it that has its id, or, without ids, to the next open call of the
    turn before it, of its tool first. Failing that it goes to a later call that has none. A second result of a call,
    and a result without a call, leave the conversation. A call without a result gets one that says so. What was
    changed is in `Transcript.repairs`, behind those that are there already.
    """
    return _Repairing(transcript).done()


class _Repairing:
    def __init__(self, transcript: Transcript) -> None:
        self.transcript = transcript
        self.repairs: list[Repair] = []
        self.items: list[Part] = [item for item in transcript.items if not self._is_empty(item)]
        self.slots: dict[int, list[_Slot]] = {
            at: [_Slot(at, index, call) for index, call in enumerate(item.turn.calls)]
            for at, item in enumerate(self.items)
            if isinstance(item, Reply)
        }

    def note(self, kind: RepairKind, item: Part, why: str, removed: JsonValue = None) -> None:
        self.repairs.append(Repair(kind, item.place, why, removed))

    def _is_empty(self, item: Part) -> bool:
        match item:
            case Said(text) if not text.strip():
                self.note("empty", item, "the message has no text; it is left out", text)
            case Reply(turn) if not (turn.text.strip() or turn.calls or turn.reasoning):
                self.note("empty", item, "the model's turn has neither text nor calls; it is left out", turn.text)
            case _:
                return False
        return True

    def done(self) -> Transcript:
        """The whole conversation."""
        self._pair()
        for at in self.slots:
            self._rename(at)
        out: list[Part] = []
        for at, item in enumerate(self.items):
            if not isinstance(item, Answered):
                out.append(item)
            if isinstance(item, Reply):
                out += self._answers(at)
        if not self.repairs:
            return self.transcript
        repairs = (*self.transcript.repairs, *self.repairs)
        return replace(self.transcript, items=tuple(out), repairs=repairs)

    # pairs

    def _pair(self) -> None:
        left: list[int] = []
        nameless = _Nameless(())
        open_: dict[str, list[_Slot]] = {}
        """Calls without a result yet, by id: the newest turn's on top, and of a turn the first."""
        known: set[str] = set()
        for at, item in enumerate(self.items):
            if isinstance(item, Reply) and item.turn.calls:
                nameless = _Nameless(self.slots[at])
                for slot in reversed(self.slots[at]):
                    if slot.call.id:
                        open_.setdefault(slot.call.id, []).append(slot)
            elif isinstance(item, Answered):
                call_id = item.call_id or ""
                found = open_[call_id].pop() if open_.get(call_id) else nameless.take(item.tool_name)
                if found is None:
                    left.append(at)
                else:
                    found.answer = at
                    known.add(call_id)
        for at in left:
            self._take_late(at, self.items[at], open_, known)

    def _take_late(self, at: int, item: Part, open_: dict[str, list[_Slot]], known: set[str]) -> None:
        """A result that no call before it waits for."""
        if not isinstance(item, Answered):
            return
        call_id = item.call_id or ""
        if call_id not in known and open_.get(call_id):
            open_[call_id].pop().answer = at
            known.add(call_id)
        elif call_id and call_id in known:
            self.note("doubled-result", item, f"a second result of call {call_id}; the first one counts", item.text)
        else:
            named = f"call {call_id}" if call_id else "a call without an id"
            self.note("orphan-result", item, f"a result of {named}, which nobody made; it is left out", item.text)

    # turns

    def _rename(self, at: int) -> None:
        """Calls of one turn that share an id get ids of their own."""
        item, slots = self.items[at], self.slots[at]
        counts = Counter(slot.call.id for slot in slots if slot.call.id)
        if not isinstance(item, Reply) or all(count == 1 for count in counts.values()):
            return
        taken, seen, calls = set(counts), set[str](), []
        for slot in slots:
            call, call_id = slot.call, slot.call.id or ""
            if call_id in seen:
                number = 2
                while f"{call_id}_{number}" in taken:
                    number += 1
                call = ModelCall(f"{call_id}_{number}", call.name, call.arguments)
                taken.add(call.id or "")
                self.note(
                    "duplicate-id", item, f"two calls of the turn have the id {call_id}; the later is {call.id} now"
                )
                answer = None if slot.answer is None else self.items[slot.answer]
                if slot.answer is not None and isinstance(answer, Answered):
                    self.items[slot.answer] = replace(answer, call_id=call.id)
            if call_id:
                seen.add(call_id)
            slot.call = call
            calls.append(call)
        self.items[at] = replace(item, turn=replace(item.turn, calls=tuple(calls)))

    def _answers(self, at: int) -> Iterator[Part]:
        slots = self.slots[at]
        near = at + 1
        while near < len(self.items) and isinstance(self.items[near], Answered):
            near += 1
        for slot in sorted(slots, key=lambda s: len(self.items) if s.answer is None else s.answer):
            if slot.answer is None:
                yield self._made_up(self.items[at], slot.call)
                continue
            found = self.items[slot.answer]
            if not isinstance(found, Answered):
                continue
            if not at < slot.answer < near:
                where = "before" if slot.answer < at else "away from"
                self.note("moved-result", found, f"the result stood {where} its call of {slot.call.name}; it is moved")
            if (found.call_id or None) != (slot.call.id or None):
                why = f"the result names call {found.call_id}; by its place it is of {slot.call.name}, without an id"
                self.note("other-id", found, why, found.call_id)
                found = replace(found, call_id=slot.call.id)
            yield found

    def _made_up(self, item: Part, call: ModelCall) -> Answered:
        named = f"{call.name} ({call.id})" if call.id else call.name
        self.note("unanswered", item, f"the call of {named} has no result; it has one now that says so")
        failure = ToolFailure(
            ErrorCode.INTERRUPTED,
            "the imported history holds no result",
            retryable=False,
            origin="gateway",
            body="unknown",
        )
        return Answered(call.id, (Text(no_result(call.name)),), failure, call.name, item.place)

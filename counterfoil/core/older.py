"""Reader: the MODEL. A summary in place of the older part of a conversation: what it covers, and how it is read.

A summary is asked for where eliding results is not enough. It covers a beginning of the conversation, whole turns with
all their results, and never the newest turn; half of the budget beside that one is free then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.context import ROOM, Fitter, estimate
from counterfoil.core.entries import ERASED, MessageEntry, SummaryEntry, TurnEntry
from counterfoil.core.media import read_as
from counterfoil.core.record import Item, Record, RunState
from counterfoil.core.shorten import clip
from counterfoil.core.words import elided, summarised

MOST_WORDS, LEAST_WORDS = 1_000, 50
"""Words of a summary: a tenth of the budget, within these bounds."""
SHOWN_CHARS = 2_000
"""Of a call's arguments and of its result so many characters are shown to who sums up, as of another agent's result."""


@dataclass(frozen=True, slots=True)
class Older:
    """What a summary should stand for."""

    first: int
    last: int
    """Reading numbers, as in `SummaryEntry`."""
    text: str
    """All of it, with the summary before it, for the one who sums up."""
    words: int
    """A summary may have so many."""
    tokens: int
    """What it takes in a request; a summary that takes as many is of no use."""


class Summing(Fitter):
    """A fitter that puts summaries in the place of what they cover.

    Args:
        budget: as for `Fitter`, likewise ``since``.
        since: see there.
        summaries: those on record, in order of arrival; the list may grow.
        sums: more are wanted; where they come to nothing turns are left out.
    """

    __slots__ = ("_most", "_summed", "_taken", "_tried", "summaries", "sums")

    def __init__(self, budget: int | None, since: int, summaries: list[SummaryEntry], *, sums: bool) -> None:
        self.summaries = summaries
        self.sums = sums
        super().__init__(budget, since)

    def _reset(self, items: Sequence[Item]) -> None:
        super()._reset(items)
        self._taken = 0
        """So many of the summaries are in their places."""
        self._most = 0
        """Tokens with which there was room again at the last request."""
        self._summed = 0
        """The newest of them covers all before this position."""
        self._tried = 0
        """There is no summary until what is older takes so many tokens: the last one came to nothing."""

    def older(self, items: Sequence[Item], reserve: int) -> Older | None:
        """What is to be summed up, so that the next request fits; None where it does, or where that would not help."""
        if self.budget is None or not self.sums:
            return None
        self._read(items, reserve)
        self._most = self._elide_old(reserve)
        if self._newest is None or self._tokens <= self._most:
            return None
        words = min(max(self.budget // 10, LEAST_WORDS), MOST_WORDS)
        takes = words * 4 // 3
        room = self.budget - reserve
        goal = room - max(room - self._fresh, 0) // 2 - takes
        end, freed, covered = self._summed, sum(map(estimate, self._held[:1])) if self._summed else 0, 0
        while end < self._newest and self._tokens - freed > goal:
            after = self._end(end)
            if after is None or (covered and covered + sum(self._costs[end:after]) > self.budget):
                break
            covered += sum(self._costs[end:after])
            if end >= self._from or type(items[end]) is MessageEntry:
                freed += sum(self._costs[end:after])
            end = after
        if end == self._summed or freed < 2 * takes or sum(self._costs[self._summed : self._newest]) < self._tried:
            self._leave_out(self._most)
            return None
        before = self.summaries[self._taken - 1].text if self._summed else None
        text = "\n".join(_told(items[self._summed : end], self._elided, self._summed, before))
        return Older(items[0].sequence, items[end].sequence - 1, text, words, freed)

    def came_to_nothing(self) -> None:
        """There is no summary of what is older now, nor another try before it has grown by a quarter of the budget."""
        self._tried = sum(self._costs[self._summed : self._newest]) + (self.budget or 0) // ROOM
        self._leave_out(self._most)

    def _read(self, items: Sequence[Item], reserve: int) -> None:
        super()._read(items, reserve)
        while self._taken < len(self.summaries):
            self._put(reserve)

    def _take(self, position: int, item: Item, reserve: int) -> None:
        while self._taken < len(self.summaries) and self.summaries[self._taken].entry < item.entry:
            self._put(reserve)
        super()._take(position, item, reserve)

    def _put(self, reserve: int) -> None:
        """Put the next summary in the place of what it covers, as when it was made."""
        self._elide_old(reserve)
        entry, self._taken = self.summaries[self._taken], self._taken + 1
        end = self._summed
        while end < len(self._costs) and (
            type(self._items[end]) is ResultEntry or self._items[end].sequence <= entry.last
        ):
            end += 1
        stays = [item for item in self._held if item.sequence > entry.last]
        gone = sum(map(estimate, self._held)) - sum(map(estimate, stays)) + sum(self._costs[self._from : end])
        said = message_of(entry)
        self._held = [said, *stays]
        self._tokens += estimate(said) - gone
        self._summed, self._from = end, max(self._from, end)
        self._elide_at = max(self._elide_at, end)
        while self._elided and self._elided[0] < end:
            self._elided.popleft()


def summaries_for(record: Record, run: RunState, *, own: bool) -> list[SummaryEntry]:
    """The summaries that a run's requests hold, in order of arrival; none that was erased.

    Args:
        record: the interaction.
        run: the run.
        own: its model reads more than the main thread, so another run's summary may be of what it must not read, or
            lack what it reads.
    """
    agent = run.head.agent if run.head is not None else None
    return sorted(
        (
            entry
            for other in record.runs.values()
            if other is run or not (own or other.head is None or other.head.agent != agent)
            for entry in other.log
            if type(entry) is SummaryEntry and entry.text != ERASED and (other is run or entry.thread_id is None)
        ),
        key=lambda entry: entry.entry,
    )


def message_of(entry: SummaryEntry) -> MessageEntry:
    """The summary as requests have it, which is no message on record."""
    return MessageEntry(
        run_id=entry.run_id, thread_id=entry.thread_id, at=entry.at, entry=entry.entry, sequence=entry.last,
        text=summarised(entry.text), author_type="Agent",
    )  # fmt: skip  # two rows


def _told(items: Sequence[Item], left_out: Sequence[int], at: int, before: str | None) -> Iterator[str]:
    """The part as text, a paragraph for each message, turn, call and result."""
    if before is not None:
        yield f"[summary of what came before] {before}"
    pointers = set(left_out)
    for position, item in enumerate(items, at):
        match item:
            case MessageEntry():
                said = "\n".join(map(read_as, item.blocks)) if item.blocks else item.text
                yield f"[{item.author_name or item.author_type}] {said}"
            case TurnEntry():
                if item.text:
                    yield f"[agent] {item.text}"
                for call in item.calls:
                    yield f"[call {call.call_id} of {call.tool_name}] {clip(call.raw, SHOWN_CHARS)}"
            case ResultEntry():
                text = item.result.model_output
                rest = f" {elided(item.call_id, item.size)}" if len(text) > SHOWN_CHARS else ""
                shown = elided(item.call_id, item.size) if position in pointers else clip(text, SHOWN_CHARS) + rest
                yield f"[result of call {item.call_id}] {shown}"

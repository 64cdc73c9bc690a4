"""Reader: the MODEL. Which items a request holds: the context budget.

The rule of the budget (contract 6): old results are elided first, the oldest first, to a pointer that says
how to read them; then whole old turns are left out with all their results. Messages stay, and the newest turn
with its results stays whole. What left one request never comes back in a later one, and a cut makes room for the
next steps too, so that a provider's cache of the beginning stays good and the work of a request grows with its own
items, not with the whole run. How large a request was is what its provider counted; what came since is estimated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.content import Audio, Block, File, Image, block_text
from counterfoil.core.entries import MessageEntry, TurnEntry
from counterfoil.core.jsontext import dumps
from counterfoil.core.media import read_as, shown_as
from counterfoil.core.record import Item
from counterfoil.core.words import elided

CHARS_PER_TOKEN = 4
"""Characters of English text or JSON that make a token, by the tokenizers' own rule of thumb."""
ITEM_TOKENS = 8
"""Tokens of the frame around a message, a call or a result."""
ROOM = 4
"""Where a request is too large, so much of the budget beside the newest turn is freed: a quarter. Less would change the
beginning of nearly every request, and more would forget what may be needed."""
MEDIA_TOKENS = 1_000
"""Tokens of an image or another medium; providers count 85 to 1,600 for an image of ordinary size."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What a request holds."""

    items: Sequence[Item]
    """In reading order. It may be the very list that was given, which may grow: take the first ``length``."""
    length: int
    elided: frozenset[int]
    """Positions in ``items`` of results that are shown as a pointer."""
    left_out: int
    """Turns that are left out with all their results."""
    tokens: int
    """Those of ``items`` as they are shown, without the reserve: as the provider counted, the rest estimated."""


class Fitter:
    """Cuts one growing conversation to a budget, request after request.

    Its answer depends on items, budget and reserve alone: one that sees the whole conversation at once gives
    the same cut as one that was asked before every turn, as long as the reserve stays equal.
    """

    __slots__ = (
        "_costs", "_elide_at", "_elided", "_fresh", "_from", "_held", "_items", "_left_out", "_newest", "_seen",
        "_since", "_tokens", "budget",
    )  # fmt: skip  # a list of names reads better in rows

    def __init__(self, budget: int | None, since: int = 0) -> None:
        """A fitter for ``budget`` tokens; with None every request holds everything.

        Args:
            budget: of each request.
            since: the entry at which this budget began; what a turn before it cost says nothing of a request of ours.
        """
        self.budget = budget
        self._since = since
        self._reset(())

    def _reset(self, items: Sequence[Item]) -> None:
        self._items = items
        self._costs: list[int] = []
        """Tokens of each item seen so far, by position."""
        self._tokens = 0
        self._seen: Item | None = None
        self._newest: int | None = None
        """Position of the newest turn."""
        self._fresh = 0
        """Tokens of the newest turn and of all after it."""
        self._from = 0
        """Everything before it is left out, but for the messages in `_held`."""
        self._held: list[Item] = []
        self._elide_at = 0
        """The next position to look at for elision."""
        self._elided: deque[int] = deque()
        self._left_out = 0

    def fit(self, items: Sequence[Item], reserve: int = 0) -> Cut:
        """The cut of ``items``; cheap when they go on from those of the last time.

        Args:
            items: a conversation in reading order, each turn followed by its results.
            reserve: tokens that something else takes: instructions, offered tools, the answer.

        Returns:
            The cut. Messages and the newest turn are in it even where they are too large together.
        """
        if self.budget is None:
            return Cut(items, len(items), frozenset(), 0, 0)
        self._read(items, reserve)
        self._shrink(reserve)
        if not self._from:
            return Cut(items, len(items), frozenset(self._elided), 0, self._tokens)
        shift = len(self._held) - self._from
        kept = [*self._held, *items[self._from :]]
        moved = frozenset(position + shift for position in self._elided)
        return Cut(kept, len(kept), moved, self._left_out, self._tokens)

    def _read(self, items: Sequence[Item], reserve: int) -> None:
        """Take in what has come since the last time."""
        seen = len(self._costs)
        if seen > len(items) or (seen and items[seen - 1] is not self._seen):
            self._reset(items)
            seen = 0
        self._items = items
        for position in range(seen, len(items)):
            self._take(position, items[position], reserve)

    def _take(self, position: int, item: Item, reserve: int) -> None:
        if type(item) is TurnEntry:
            # The request that this turn answers was cut too.
            self._shrink(reserve)
            self._newest, self._fresh = position, 0
            if item.entry > self._since and item.usage.input_tokens:
                self._tokens = item.usage.input_tokens - reserve
        cost = estimate(item)
        self._costs.append(cost)
        self._tokens += cost
        self._fresh += cost
        self._seen = item

    def _shrink(self, reserve: int) -> None:
        self._leave_out(self._elide_old(reserve))

    def _elide_old(self, reserve: int) -> int:
        """Elide results until there is room again; the most tokens with which there is."""
        if self.budget is None or self._newest is None:
            return self._tokens
        most = self.budget - reserve
        if self._tokens <= most:
            return most
        most -= max(most - self._fresh, 0) // ROOM
        while self._tokens > most and self._elide_at < self._newest:
            self._elide()
        return most

    def _elide(self) -> None:
        position = self._elide_at
        self._elide_at += 1
        item = self._items[position]
        if type(item) is not ResultEntry:
            return
        saved = self._costs[position] - estimate_elided(item)
        if saved > 0:
            self._costs[position] -= saved
            self._tokens -= saved
            self._elided.append(position)

    def _leave_out(self, most: int) -> None:
        while self._tokens > most and self._leave_one_out():
            pass

    def _leave_one_out(self) -> bool:
        """Leave the oldest turn out, with all its results; False when there is none that may go."""
        items, position, newest = self._items, self._from, self._newest or 0
        while position < newest and type(items[position]) is not TurnEntry:
            position += 1
        end = self._end(position)
        if position >= newest or end is None:
            return False
        self._held += items[self._from : position]
        self._tokens -= sum(self._costs[position:end])
        self._from = end
        self._elide_at = max(self._elide_at, end)
        while self._elided and self._elided[0] < end:
            self._elided.popleft()
        self._left_out += 1
        return True

    def _end(self, position: int) -> int | None:
        """Where the message or turn at a position ends, with its results; None: a call of it is still open."""
        turn = self._items[position]
        if type(turn) is not TurnEntry:
            return position + 1
        end = position + 1 + len(turn.calls)
        return end if all(_answers(item, turn) for item in self._items[position + 1 : end]) else None


def fit(items: Sequence[Item], tokens: int | None, reserve: int = 0) -> Cut:
    """The cut of a conversation to ``tokens``, less ``reserve``; see `Fitter`."""
    return Fitter(tokens).fit(items, reserve)


def _answers(item: Item, turn: TurnEntry) -> bool:
    return type(item) is ResultEntry and item.run_id == turn.run_id and item.step == turn.step


def estimate(item: Item) -> int:
    """Tokens of an item, estimated: four characters a token, a medium as a constant."""
    match item:
        case MessageEntry():
            return ITEM_TOKENS + (sum(map(_said_tokens, item.blocks)) if item.blocks else _tokens(len(item.text)))
        case TurnEntry():
            chars = len(item.text) + sum(len(c.tool_name) + len(c.raw) for c in item.calls)
            if item.reasoning is not None:
                chars += len(dumps(item.reasoning))
            return ITEM_TOKENS * (1 + len(item.calls)) + _tokens(chars)
        case ResultEntry():
            return ITEM_TOKENS + sum(map(_block_tokens, item.result.content))


def estimate_elided(result: ResultEntry) -> int:
    """Tokens of a result that is shown as a pointer."""
    return ITEM_TOKENS + _tokens(len(elided(result.call_id, result.size)))


def _block_tokens(block: Block) -> int:
    return MEDIA_TOKENS if isinstance(block, (Image, Audio, File)) else _tokens(len(block_text(block)))


def _said_tokens(block: Block) -> int:
    return _block_tokens(block) if shown_as(block) else _tokens(len(read_as(block)))


def _tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)

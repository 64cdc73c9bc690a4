"""The laws of the contract, proved on the rows of a store one after another (contract 11).

`Checker` holds what it needs of one interaction at a time (facts of its calls, never a content), where each
interaction must reach, and the digests of the texts that are kept apart.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from counterfoil.core.laws_chain import Chain
from counterfoil.core.laws_facts import Facts, Problem, Row, Tip, number, read_facts, text, text_or_none
from counterfoil.core.laws_run import apply, skip
from counterfoil.core.laws_state import Interaction

_OF_ORDER = frozenset(
    {"missing-result", "doubled-result", "doubled-start", "orphan-result", "approval", "sequence", "order", "summary"}
)
"""Laws that follow from the order of entries: where entries have changed places, that is what is wrong."""


@dataclass(slots=True)
class Counts:
    """How much was read."""

    interactions: int = 0
    runs: int = 0
    calls: int = 0
    results: int = 0
    entries: int = 0
    kept: int = 0
    """Texts kept apart."""
    erased: int = 0
    """Contents of entries and texts kept apart that retention has erased."""


@dataclass(frozen=True, slots=True)
class LastEntry:
    """Where an interaction's chain ends (a `Tip`)."""

    tenant: str
    interaction_id: str
    entry: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class _Pointer:
    """An entry that points to a text kept apart."""

    digest: str
    interaction_id: str
    entry: int
    run_id: str
    call_id: str


class Checker:
    """Proves the laws on rows in order of (interaction, entry).

    `feed` every row, then `finish`; then `kept` every text kept apart, then `finish_kept`. Each gives the
    problems that it has found: those of an interaction together, in order of entries, when the next begins.
    """

    def __init__(self, tips: Iterable[Tip] = ()) -> None:
        """``tips``: what must still be on record, as somebody saw it earlier."""
        self.counts = Counts()
        self.heads: list[LastEntry] = []
        """Where each interaction ends, as read."""
        self._tips: dict[tuple[str, str], list[Tip]] = {}
        for tip in tips:
            self._tips.setdefault((tip.tenant, tip.interaction_id), []).append(tip)
        self._kept: dict[tuple[str, str], _Pointer] = {}
        self._at: Interaction | None = None
        self._chain = Chain()
        self._head: LastEntry | None = None
        self._due: list[Tip] = []
        self._copies: set[int] = set()
        """Hashes of the bodies of starts and results, to know one that was added once more."""

    def feed(self, row: Row) -> list[Problem]:
        """Take the next row in."""
        done: list[Problem] = []
        at = self._at
        if at is None or at.id != row.interaction_id or at.tenant != row.tenant:
            done = self._close()
            at = self._open(row)
        self.counts.entries += 1
        at.at(row, row.run_id)
        trusted = self._chain.feed(row)
        if self._due:
            self._meet_tips(at, row, trusted=trusted)
        self._head = LastEntry(row.tenant, row.interaction_id, row.entry, row.hash)
        if row.erased_at is not None:
            self.counts.erased += 1
        if not trusted:
            self._doubt(at, row)
        else:
            try:
                self._trust(at, row)
            except ValueError as e:
                at.say("unreadable", f"entry {row.entry} ({row.kind}) cannot be read: {e}")
                skip(at, row)
        return done

    def finish(self) -> list[Problem]:
        """There is no further row."""
        found = self._close()
        for (tenant, interaction_id), tips in self._tips.items():
            last = max(tip.entry for tip in tips)
            message = f"the interaction is not in the store; it had {last} entries"
            found.append(Problem("dropped-tail", tenant, interaction_id, None, None, None, message))
        self._tips.clear()
        return found

    def kept(self, tenant: str, kept_id: str, data: bytes | None, size: int, digest: str) -> list[Problem]:
        """Take in a text kept apart: its UTF-8 bytes (None when erased), their size and digest as stored."""
        self.counts.kept += 1
        pointer = self._kept.pop((tenant, kept_id), None)
        wrong = None
        if data is None:
            self.counts.erased += 1
        elif hashlib.sha256(data).hexdigest() != digest:
            wrong = "its bytes do not give its digest"
        elif len(data) != size:
            wrong = f"it has {len(data)} bytes, expected {size}"
        if wrong is None and pointer is not None and pointer.digest != digest:
            wrong = "its digest is not the one on record"
        return [_kept_problem(tenant, kept_id, pointer, wrong)] if wrong else []

    def finish_kept(self) -> list[Problem]:
        """There is no further text kept apart."""
        found = [
            _kept_problem(key[0], key[1], pointer, "it is not in the store") for key, pointer in self._kept.items()
        ]
        self._kept.clear()
        return found

    def _open(self, row: Row) -> Interaction:
        self._at = Interaction(row.tenant, row.interaction_id)
        self._chain = Chain()
        self._copies = set()
        self._due = self._tips.pop((row.tenant, row.interaction_id), [])
        self.counts.interactions += 1
        return self._at

    def _close(self) -> list[Problem]:
        at, head = self._at, self._head
        if at is None or head is None:
            return []
        self._at = self._head = None
        self.heads.append(head)
        counts = self.counts
        counts.runs += at.started
        counts.calls += at.calls
        counts.results += at.results
        breaks = self._chain.breaks()
        found = [Problem(b.kind, at.tenant, at.id, b.entry, b.run_id, None, b.message) for b in breaks]
        for seen, problem in at.problems:
            if problem.kind not in _OF_ORDER or not any(b.entry <= seen <= b.until for b in breaks):
                found.append(problem)
        found.sort(key=lambda p: p.entry or 0)
        if self._due:
            last = max(tip.entry for tip in self._due)
            message = f"the interaction ends at entry {head.entry}; it had {last} entries"
            found.append(Problem("dropped-tail", at.tenant, at.id, head.entry, None, None, message))
        return found

    def _meet_tips(self, at: Interaction, row: Row, *, trusted: bool) -> None:
        met = [tip for tip in self._due if tip.entry <= row.entry]
        self._due = [tip for tip in self._due if tip.entry > row.entry]
        # A row that breaks the chain is named as such.
        if trusted and any(tip.entry == row.entry and tip.hash != row.hash for tip in met):
            at.say("dropped-tail", f"entry {row.entry} is another one than the head that was kept says")

    def _doubt(self, at: Interaction, row: Row) -> None:
        if row.kind in ("start", "result") and hash(row.body) in self._copies:
            # Whoever adds an entry once more seldom mends the chain: then this is the root.
            self._chain.forget_last()
            what = "doubled-start" if row.kind == "start" else "doubled-result"
            at.say(
                "doubled-start" if what == "doubled-start" else "doubled-result",
                "an earlier entry stands here again",
            )
            return
        try:
            read_facts(row.body)
        except ValueError as e:
            self._chain.forget_last()
            at.say("unreadable", f"entry {row.entry} ({row.kind}) cannot be read: {e}")
        skip(at, row)

    def _trust(self, at: Interaction, row: Row) -> None:
        facts = read_facts(row.body)
        run_id, kind = text(facts, "run"), text(facts, "kind")
        at.at(row, run_id)
        if kind in ("start", "result"):
            self._copies.add(hash(row.body))
        content = self._content(at, row, facts)
        apply(at, row, facts, content)
        for name, column, fact in (
            ("run", row.run_id, run_id),
            ("kind", row.kind, kind),
            ("seq", row.sequence, number(facts, "seq")),
        ):
            if column != fact:
                at.say("column", f"{name} is {column!r:.80} in the row, {fact!r:.80} in its body")
        if kind in ("result", "late"):
            self._point(at, row, facts)

    def _content(self, at: Interaction, row: Row, facts: Facts) -> bytes | None:
        """The content, if it is what was written."""
        digest, content = text_or_none(facts, "content"), row.content
        wrong = None
        if content is None:
            if digest is not None and row.erased_at is None:
                wrong = "its content is gone, and is not said to be erased"
        elif digest is None:
            wrong = "it has a content, and was written without"
        elif hashlib.sha256(content).hexdigest() != digest:
            wrong = "its content does not give its digest"
        elif row.erased_at is not None:
            wrong = "its content is said to be erased, and is there"
        else:
            return content
        if wrong:
            at.say("changed-bytes", f"entry {row.entry} ({row.kind}): {wrong}")
        return None

    def _point(self, at: Interaction, row: Row, facts: Facts) -> None:
        kept_id = text_or_none(facts, "keptId")
        if kept_id is None:
            return
        digest = text(facts, "keptDigest")
        pointer = _Pointer(digest, row.interaction_id, row.entry, text(facts, "run"), text(facts, "callId"))
        first = self._kept.setdefault((row.tenant, kept_id), pointer)
        if first.digest != digest:
            at.say("kept", f"text {kept_id} has another digest in entry {first.entry}")


def _kept_problem(tenant: str, kept_id: str, pointer: _Pointer | None, wrong: str) -> Problem:
    message = f"text {kept_id}, kept apart: {wrong}"
    if pointer is None:
        return Problem("kept", tenant, None, None, None, None, message)
    p = pointer
    return Problem("kept", tenant, p.interaction_id, p.entry, p.run_id, p.call_id, message)

"""Which part of an interaction a reader asked for, and which part of it a run's model sees (contract 9)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import TypeAlias

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import MessageEntry, NoteEntry, RunEntry, TurnEntry
from counterfoil.core.record import Item, Record, RunState
from counterfoil.core.turn import author, sees_thread, thread_named
from counterfoil.core.words import overheard

Thread: TypeAlias = "str | EllipsisType | None"
"""A thread's id, None for the main thread, ``...`` for all of them."""


def family(record: Record, run_id: str | None) -> dict[str, RunState]:
    """A run and the runs below it, in the order of their beginnings; None: every run of the interaction.

    Raises:
        KeyError: the record has no such run.
    """
    if run_id is None:
        return record.runs
    found = {run_id: record.runs[run_id]}
    for run in record.runs.values():
        if run.parent is not None and run.parent.run_id in found:
            found[run.run_id] = run
    return found


def lines(record: Record, run_id: str | None, thread: Thread) -> Iterator[MessageEntry | NoteEntry | TurnEntry]:
    """What stands on a thread in reading order, as far as it belongs to the runs of `runs_on`."""
    of = runs_on(record, run_id, thread)
    for entry in record.said():
        if type(entry) is not ResultEntry and thread in (..., entry.thread_id) and entry.run_id in of:
            yield entry  # type: ignore[misc]  # mypy does not narrow by `is`


def runs_on(record: Record, run_id: str | None, thread: Thread) -> dict[str, RunState]:
    """The runs that a reader of a thread in a run reads: it and those below it.

    A thread that is named is given whole, whichever runs wrote on it: a private one is kept from run to run.

    Raises:
        KeyError: the record has no such run.
    """
    of = family(record, run_id)
    return record.runs if isinstance(thread, str) else of


def asked_thread(record: Record, run_id: str, thread: Thread) -> Thread:
    """The thread that a reader of a run asked for: None is the run's own, and ``main`` the main one.

    Raises:
        ValueError: there is no thread of this name.
    """
    head = record.runs[run_id].head
    if isinstance(thread, str):
        return thread_named(thread)
    return head.thread_id if thread is None and head is not None else thread


class View:
    """What a run's model reads: its own thread and, as they were when it began, the main one and its private one.

    Of another participant's turns it reads what they came to, as a message: calls and reasoning are that one's own.
    """

    __slots__ = ("_at", "_source", "items")

    def __init__(self, record: Record, run: RunState, before: Sequence[Item]) -> None:
        head = run.head
        first = 0 if head is None else head.entry
        self._source = record.thread(None if head is None else head.thread_id)
        self._at = next((i for i, e in enumerate(self._source) if not 0 < e.entry < first), len(self._source))
        self.items: list[Item] = list(before)

    def take(self) -> list[Item]:
        """The conversation so far; the same list, which has grown."""
        self.items += self._source[self._at :]
        self._at = len(self._source)
        return self.items


def may_read(run: RunState, result: ResultEntry) -> bool:
    """Whether a result may be read in a run: on its own thread; on others as its model reads them.

    Those are the main one and its agent's, as they were when it began.
    """
    head = run.head
    if head is None or result.thread_id == head.thread_id:
        return True
    return 0 < result.entry < head.entry and sees_thread(_agent_id(head), result.thread_id)


def view_of(record: Record, run: RunState) -> View | None:
    """What the model of a run sees; None: the main thread as it is, all of it."""
    head = run.head
    if head is None or not (record.threads or head.thread_id is not None):
        return None
    private = record.threads.get(f"private:{_agent_id(head)}", [])
    if head.thread_id is None and not private:
        return None
    reader = None if head.thread_id is None else head.agent
    said = sorted((i for i in [*record.items, *private] if type(i) is not ResultEntry), key=lambda i: i.sequence)
    before = [i for item in said if 0 < item.entry < head.entry for i in _as_seen(record, item, reader, head.entry)]
    return View(record, run, before)


def _agent_id(head: RunEntry) -> str:
    return author("Agent", head.agent, head.caller.tenant).id


def _as_seen(record: Record, item: Item, reader: str | None, before: int) -> list[Item]:
    """An item with its results as an agent reads it, or as it is; nothing of a turn whose calls were open then."""
    if not isinstance(item, TurnEntry):
        return [item]
    run = record.runs[item.run_id]
    results = [r for c in item.calls if (r := run.call_ids[c.call_id].result) is not None and r.entry < before]
    if len(results) < len(item.calls):
        return []
    name = run.agent
    if reader in (None, name):
        return [item, *results]
    text = overheard(name, item.text, [(r.tool_name, r.call_id, r.result.model_output) for r in results])
    said = MessageEntry(
        run_id=item.run_id, thread_id=item.thread_id, at=item.at, entry=item.entry, sequence=item.sequence, text=text,
        author_type="Agent", author_name=name,
    )  # fmt: skip  # two rows
    return [said]

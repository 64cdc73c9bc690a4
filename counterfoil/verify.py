"""Proves the laws of the contract on a whole store; compares it with a head kept elsewhere (contract 11)."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from counterfoil.core.errors import UsageError
from counterfoil.core.jsontext import JsonValue, dumps, loads
from counterfoil.core.laws import Checker
from counterfoil.core.laws_facts import Problem
from counterfoil.store import Head, Store

_BATCH = 1000
"""Entries between two looks of the event loop at other tasks: some 20 ms of work."""


@dataclass(frozen=True, slots=True)
class Verification:
    """What `verify` found."""

    problems: tuple[Problem, ...]
    interactions: int
    runs: int
    calls: int
    """Calls that models made."""
    results: int
    entries: int
    kept: int
    """Texts kept apart."""
    erased: int
    """Contents and texts kept apart that retention has erased; their digests still count."""
    heads: list[Head]
    """Where each interaction ended when it was read."""

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    @property
    def head(self) -> str:
        """The heads as text to keep elsewhere, see `format_head`: what a later `verify` compares with."""
        return format_head(self.heads)

    def to_json(self) -> dict[str, JsonValue]:
        """What was found by field, in camelCase; hashes as hex."""
        return {
            "ok": self.ok,
            "problems": [p.to_json() for p in self.problems],
            "interactions": self.interactions,
            "runs": self.runs,
            "calls": self.calls,
            "results": self.results,
            "entries": self.entries,
            "kept": self.kept,
            "erased": self.erased,
            "heads": [_head_to_json(h) for h in self.heads],
        }


async def verify(
    store: Store, *, head: str | Path | Sequence[Head] | None = None, progress: Callable[[int], None] | None = None
) -> Verification:
    """Read the whole store, of all tenants, and prove the laws on it.

    Runs may go on meanwhile. Memory grows with the number of interactions and of texts kept apart, and with
    the calls of the largest interaction; never with contents.

    Args:
        store: an open store.
        head: what was on record once, also as text or a file (see `parse_head`): a store that holds less now, or
            something else, has lost entries. One that has grown since is well.
        progress: called with the number of entries read so far, now and then, and at the end.

    Raises:
        StoreError: the store cannot be read.
        UsageError: the head cannot be read.
    """
    # The tips first: whatever is written while we read comes after them.
    known = parse_head(head) if isinstance(head, (str, Path)) else head or ()
    checker = Checker([*known, *await store.heads()])
    problems: list[Problem] = []
    counts = checker.counts
    async for row in store.rows():
        problems += checker.feed(row)
        if counts.entries % _BATCH == 0:
            await _breathe(progress, counts.entries)
    problems += checker.finish()
    # After the entries: a text that an entry names was stored with it.
    async for text in store.kept_texts():
        problems += checker.kept(*text)
    problems += checker.finish_kept()
    await _breathe(progress, counts.entries)
    return Verification(
        problems=tuple(problems),
        interactions=counts.interactions,
        runs=counts.runs,
        calls=counts.calls,
        results=counts.results,
        entries=counts.entries,
        kept=counts.kept,
        erased=counts.erased,
        heads=[Head(h.tenant, h.interaction_id, h.entry, h.hash) for h in checker.heads],
    )


async def _breathe(progress: Callable[[int], None] | None, entries: int) -> None:
    if progress is not None:
        progress(entries)
    await asyncio.sleep(0)


def format_head(heads: Iterable[Head]) -> str:
    """The heads as text to keep elsewhere: a JSON object a line for each interaction, one more for the whole.

    The last line holds their number and SHA-256 over the lines before it. It shows a text that was cut off or
    changed by mishap; it is no signature.
    """
    ordered = sorted(heads, key=lambda h: (h.tenant, h.interaction_id))
    lines = "".join(dumps(_head_to_json(h)).decode() + "\n" for h in ordered)
    digest = hashlib.sha256(lines.encode()).hexdigest()
    return lines + dumps({"heads": len(ordered), "digest": digest}).decode() + "\n"


def parse_head(text: str | Path) -> list[Head]:
    """The heads that `format_head` wrote.

    Args:
        text: the text itself, or the path of a file that holds it.

    Raises:
        UsageError: the file cannot be read, or the text is no head, was changed or is not whole.
    """
    if isinstance(text, Path) or not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, ValueError) as e:
            raise UsageError(
                f"the head in {str(text)[:200]!r} cannot be read ({e}); give the file that holds it"
            ) from e
    *lines, last = text.strip().splitlines() or [""]
    try:
        end = cast("dict[str, JsonValue]", loads(last))
        whole = end["digest"] == hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()
        heads = [_head_from_json(cast("dict[str, JsonValue]", loads(line))) for line in lines]
    except (ValueError, TypeError, KeyError) as e:
        raise UsageError("expected a head as `verify --head` prints it; give the whole text, unchanged") from e
    if not whole or end["heads"] != len(heads):
        raise UsageError("the head was changed or is not whole; give the text as `verify --head` printed it")
    return heads


def _head_to_json(head: Head) -> dict[str, JsonValue]:
    return {
        "tenant": head.tenant,
        "interaction": head.interaction_id,
        "entry": head.entry,
        "hash": head.hash.hex(),
    }


def _head_from_json(data: dict[str, JsonValue]) -> Head:
    tenant, interaction_id, entry, digest = data["tenant"], data["interaction"], data["entry"], data["hash"]
    if not (
        isinstance(tenant, str)
        and isinstance(interaction_id, str)
        and isinstance(entry, int)
        and isinstance(digest, str)
    ):
        raise TypeError("a head names tenant, interaction, entry and hash")
    return Head(tenant, interaction_id, entry, bytes.fromhex(digest))

"""What the check of a record remembers of one interaction: small facts of runs and calls, no content."""

from __future__ import annotations

from dataclasses import dataclass, field

from counterfoil.core.laws_facts import Found, Kind, Problem, Row


@dataclass(slots=True, eq=False)
class Asked:
    """An approval, as far as its facts go."""

    id: str
    kind: str
    digest: str | None
    """Of the effective input that may start; None: an edit that was erased since."""
    call: CallFacts
    choice: str | None = None
    consumed: bool = False
    after: str | None = None
    """The approval that it replaced: part of its digest, until a person's edit is what may start."""


@dataclass(slots=True, eq=False)
class CallFacts:
    """A call, as far as its facts go."""

    call_id: str
    tool_name: str | None
    """None: the turn that made it cannot be trusted."""
    attempt: int = 0
    """Of the newest start."""
    safe: bool = True
    """Every start so far was of a tool that may run again."""
    key: str | None = None
    outcome: str | None = None
    """Of the result; None while there is none, empty once its lack is named."""
    asked: Asked | None = None
    """The newest approval."""
    child: str | None = None
    """The run that it waits for."""


@dataclass(slots=True, eq=False)
class TurnFacts:
    """A turn, as far as its facts go."""

    entry: int
    stop: str
    first_result: int
    """The reading number of the first call's result."""
    calls: list[CallFacts]
    first: int
    """Its own first reading number."""

    @property
    def end(self) -> int:
        """The last reading number that it or a result of it takes."""
        return max(self.first_result + len(self.calls) - 1, self.first)


@dataclass(slots=True, eq=False)
class RunFacts:
    """A run, as far as its facts go."""

    root: bool = False
    """It began as a root run."""
    thread: str | None = None
    """Where its turns and calls stand."""
    parent: str | None = None
    turns: dict[int, TurnFacts | None] = field(default_factory=dict)
    """By step; None: the turn cannot be trusted, so nothing is known of its calls."""
    call_ids: set[str] = field(default_factory=set)
    approvals: dict[str, Asked] = field(default_factory=dict)
    ended: str | None = None
    """Status at its end; None while it is open."""
    ended_run: tuple[int, int] | None = None
    summed: int = 0
    """The last reading number that a summary of it stands for."""
    blind: set[str] = field(default_factory=set)
    """Kinds of its entries of which one cannot be trusted: what it may have said is not missed."""
    lost_results: int = 0
    """Results that are there but cannot be trusted: as many calls are not said to lack theirs."""
    lost_turns: set[int] = field(default_factory=set)
    """Steps of which calls are told though no turn made them; each is named once."""


class Interaction:
    """What is known of an interaction so far, and what is wrong with it."""

    __slots__ = (
        "_call_id", "_run_id", "calls", "children", "entry", "free", "id", "problems", "queued", "results", "runs",
        "started", "tenant",
    )  # fmt: skip

    def __init__(self, tenant: str, interaction_id: str) -> None:
        self.tenant = tenant
        self.id = interaction_id
        self.problems: list[tuple[int, Problem]] = []
        """Each with the entry at which it was seen, which is not always the one at fault."""
        self.started = self.calls = self.results = 0
        """Runs that began, calls and results so far."""
        self.runs: dict[str, RunFacts] = {}
        self.children: set[str] = set()
        """Runs that some call waits for, or waited for."""
        self.queued: dict[int, bool] = {}
        """Messages that were queued, by entry; True once delivered."""
        self.free = 1
        """The lowest reading number that is free."""
        self.entry = 0
        self._run_id = ""
        self._call_id: str | None = None

    def at(self, row: Row, run_id: str) -> None:
        """Problems are of this entry and run from here on."""
        self.entry, self._run_id, self._call_id = row.entry, run_id, None

    def at_call(self, call_id: str) -> None:
        """Problems are of this call from here on, until the next entry."""
        self._call_id = call_id

    def say(self, kind: Kind, message: str, *, entry: int | None = None, call_id: str | None = None) -> None:
        """Put a problem on the list: of the entry at hand, or of another one."""
        place = entry or self.entry
        problem = Problem(kind, self.tenant, self.id, place, self._run_id, call_id or self._call_id, message)
        self.problems.append((self.entry, problem))

    def say_all(self, found: list[Found]) -> None:
        """Put problems of the entry at hand on the list."""
        for kind, message in found:
            self.say(kind, message)

    def take(self, sequence: int, width: int) -> None:
        """Reading numbers ``sequence`` to ``sequence + width - 1`` are taken: each once, in order."""
        if sequence < self.free:
            self.say("sequence", f"reading number {sequence} is used again; {self.free} is the next that is free")
        self.free = max(self.free, sequence + width)

    def miss(self, run: RunFacts, turn: TurnFacts, before: str) -> None:
        """Name each call of the turn that lacks its result, once."""
        for call in turn.calls:
            if call.outcome is not None:
                continue
            call.outcome = ""
            if run.lost_results:
                run.lost_results -= 1
            else:
                message = f"the call of {call.tool_name} has no result before {before}"
                self.say("missing-result", message, entry=turn.entry, call_id=call.call_id)

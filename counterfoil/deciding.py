"""Deciding: what people, callers and programs put on the record of a run that somebody drives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from uuid import UUID, uuid5

from counterfoil.core.approval import Approval, Decision, expired
from counterfoil.core.content import block_to_json
from counterfoil.core.entries import CancelEntry, NoteEntry, QueuedEntry, ResumedEntry
from counterfoil.core.errors import AmbiguousCall, Conflict, Fenced, NotFound, NotPending, UnknownAgent, UsageError
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.limits import DEFAULT_LIMITS, Limits
from counterfoil.core.media import Prompt, prompt_of
from counterfoil.core.outcome import Failed, Succeeded
from counterfoil.core.record import Record
from counterfoil.core.result import ToolResult
from counterfoil.core.states import OPEN
from counterfoil.core.threads import family
from counterfoil.core.turn import Author, AuthorType, author, joined, moment, participants_json
from counterfoil.decide import check_edit
from counterfoil.dispatch import Dispatch
from counterfoil.heart import Heart
from counterfoil.loop import Drive
from counterfoil.reading import Reading
from counterfoil.run import Fold, Run, Runs
from counterfoil.store import InteractionRow, Lease, Owner, RunRow

NAMED = 20
"""Agents that an error names, at most."""
_KEYED = UUID("0b6a3c52-9c1e-5f0f-8b57-6f8a5c0f9a11")
"""Ours; the id of an interaction that is begun with a key is derived from it, so that a repeat meets the first."""


def digest_of(request: JsonValue) -> str:
    """What tells two requests with one idempotency key apart."""
    return hashlib.sha256(dumps(request)).hexdigest()


class Deciding(Reading):
    """The half of a Runtime that decides, cancels, sends and resumes."""

    agents: dict[str, Any]
    dispatch: Dispatch
    limits: Limits | None
    owner: Owner
    heart: Heart
    _lost: dict[str, str]
    """Runs that may be this process's on record though it does not drive them, with their tenants."""
    _claims: int
    """How many runs are on their way to be this process's just now."""

    def kick(self, tenant: str, run_id: str) -> None:
        """Something was put on record for this run."""
        raise NotImplementedError

    def _budget(self, agent: Any, limits: Limits | None) -> Limits:
        """Of this run, else of its agent (None: not here), else of the Runtime."""
        return limits or (agent.limits if agent is not None else None) or self.limits or DEFAULT_LIMITS

    def budget_of(self, agent: str) -> Limits:
        """See `counterfoil.team.Host`."""
        return self._budget(self.agents.get(agent), None)

    async def take_up(self, row: RunRow, *, force: bool = False) -> None:
        """Claim a run and begin to drive it."""
        raise NotImplementedError

    def _drive(self, agent: Any, lease: Lease, fold: Fold) -> Drive:
        raise NotImplementedError

    @contextmanager
    def _claiming(self, tenant: str, run_id: str) -> Iterator[None]:
        """Whatever goes wrong in here: on record the run may be this process's, and nobody else would take it up."""
        self._claims += 1
        try:
            yield
        except (Conflict, Fenced, NotFound):
            raise
        except BaseException:  # also when whoever waits for this goes away
            self._lost[run_id] = tenant
            raise
        finally:
            self._claims -= 1

    async def approve(
        self, run_id: str, call_id: str, *, by: str | None = None, reason: str | None = None,
        input: dict[str, JsonValue] | None = None,  # a promise of the public interface
        digest: str | None = None, approval: str | None = None, roles: Sequence[str] = (), tenant: str = "default",
    ) -> Approval:  # fmt: skip  # rows by what belongs together
        """Let a call run, perhaps with an edited input.

        Args:
            run_id: the run, or one that waits for it.
            call_id: the call. Where several runs below have one of this id, ``digest`` or ``approval`` may say which.
            by: who decides.
            reason: why, for the record.
            input: what runs instead; schema and policy must take it.
            digest: of the approval that the person saw. A call that is asked about a second time has another one, so a
                repeat of the first decision is acknowledged and does not count for the second.
            approval: its id; says the same. Without either the decision counts for what waits now.
            roles: what the person is, for approvals that only some may decide.
            tenant: whose run it is.

        Raises:
            NotFound: no such run for this tenant.
            NotPending: no decision is awaited.
            NotAllowed: this person may not decide.
            DecisionConflict: it was decided differently, or ``digest`` is of another input.
            AmbiguousCall: several runs below have such a call; name the run.
            InvalidInput: schema or policy refuse the edited input; the call stays pending.
        """
        made = Decision("approve", by, reason, None, digest, approval=approval)
        if input is not None:
            run_id = await self._meant_run(tenant, run_id, call_id, made)
            made = replace(made, input=await check_edit(self, run_id, call_id, input, tenant, made))
        return await self._decide(tenant, run_id, call_id, made, roles)

    async def reject(
        self, run_id: str, call_id: str, *, by: str | None = None, reason: str | None = None, digest: str | None = None,
        approval: str | None = None, roles: Sequence[str] = (), tenant: str = "default",
    ) -> Approval:  # fmt: skip  # two rows
        """Refuse a call. Raises as `approve`."""
        made = Decision("reject", by, reason, None, digest, approval=approval)
        return await self._decide(tenant, run_id, call_id, made, roles)

    async def settle(
        self, run_id: str, call_id: str, *, by: str | None = None, rerun: bool = False,
        result: ToolResult | None = None, reason: str | None = None, digest: str | None = None,
        approval: str | None = None, roles: Sequence[str] = (), tenant: str = "default",
    ) -> Approval:  # fmt: skip  # rows by what belongs together
        """Settle an interrupted call: run it again, or record what happened. Raises as `approve`."""
        if rerun == (result is not None):
            raise UsageError("settle takes either rerun=True or result=ToolResult…")
        if result is not None and not isinstance(result.outcome, (Succeeded, Failed)):
            raise UsageError(f"settle records what succeeded or failed, and got {type(result.outcome).__name__}")
        value = None if result is None else cast("JsonValue", result.to_dict())
        made = Decision("rerun" if rerun else "record", by, reason, None, digest, value, approval=approval)
        return await self._decide(tenant, run_id, call_id, made, roles)

    async def answer(
        self, run_id: str, call_id: str, *, by: str | None = None, text: str, digest: str | None = None,
        approval: str | None = None, roles: Sequence[str] = (), tenant: str = "default",
    ) -> Approval:  # fmt: skip  # two rows
        """Answer a question. Raises as `approve`."""
        made = Decision("answer", by, None, None, digest, clean_text(text), approval=approval)
        return await self._decide(tenant, run_id, call_id, made, roles)

    async def _decide(
        self, tenant: str, run_id: str, call_id: str, decision: Decision, roles: Sequence[str]
    ) -> Approval:
        self._check()
        made = replace(
            decision,
            by=decision.by and clean_text(decision.by),
            reason=None if decision.reason is None else clean_text(decision.reason),
            at=self.effects.now(),
            roles=tuple(clean_text(role) for role in roles),
        )
        probe = self.effects.probe
        if probe is not None:
            probe("store:before:decide")
        try:
            approval, _ = await self.store.decide(tenant, run_id, call_id, made)
        except NotPending:
            below = await self._meant_run(tenant, run_id, call_id, made)
            if below == run_id:
                raise
            return await self._decide(tenant, below, call_id, decision, roles)
        if probe is not None:
            probe("store:after:decide")
        self.hub.wake(run_id)
        self.kick(tenant, run_id)
        return approval

    async def _meant_run(self, tenant: str, run_id: str, call_id: str, made: Decision) -> str:
        """The run whose call of this id a decision is about: this one, or the one below it with such a call.

        Raises:
            AmbiguousCall: several below have one.
        """
        now = moment(self.effects.now())
        asked = [a for a in await self.store.approvals(tenant, run_id) if a.call_id == call_id]
        if any(a.run_id == run_id for a in asked):
            return run_id
        found = _fitting((a for a in asked if not expired(a, now)), made)
        if not found:  # the first decision answers for ever, also to who names the run above
            row = await self.store.run(tenant, run_id)
            record = Record(await self.store.entries(tenant, row.interaction_id))  # who drives it may be behind
            calls = [r.call_ids[call_id] for r in family(record, run_id).values() if call_id in r.call_ids]
            found = _fitting((c.waiting.approval for c in calls if c.waiting and c.decided), made)
        runs = list(dict.fromkeys(a.run_id for a in found or asked))
        if len(runs) > 1:
            told = f"run {run_id} has below it calls {call_id} of runs {', '.join(runs)}"
            raise AmbiguousCall(f"{told}; decide in the run that is meant", runs)
        return runs[0] if runs else run_id

    async def cancel(
        self, run_id: str, *, reason: str | None = None, by: str | None = None, tenant: str = "default"
    ) -> None:
        """End a run: nothing new starts, bodies are told and waited for, every call gets its result.

        On a run that has ended already it does nothing. Raises NotFound.
        """
        self._check()
        reason, by = reason and clean_text(reason), by and clean_text(by)
        entry = CancelEntry(run_id=run_id, at=self.effects.now(), reason=reason, by=by)
        probe = self.effects.probe
        if probe is not None:
            probe("store:before:cancel")
        row = await self.store.post(tenant, run_id, entry)
        if probe is not None:
            probe("store:after:cancel")
        if row.status not in OPEN:
            return
        if run_id in self._drives:
            self._drives[run_id].notify()
        elif row.owner is None or not await self.store.lives(row.owner, self.owner):
            # Nobody drives it, so nothing runs: it can be settled here, with its agent or without.
            await self.take_up(await self.store.run(tenant, run_id), force=True)
            await self.dispatch.forget(row)

    async def _must_be_known(self, agent: str) -> None:
        """Refuse an agent that nobody has; one whose workers have been away for no longer than a while is known yet.

        Where no process that lives has any agent, nothing is known, and what is started waits for one.

        Raises:
            UnknownAgent
        """
        names = sorted({*self.agents, *await self.store.agents()})
        if agent in names or not (self.agents or (names and await self._somebody_works())):
            return
        there = ", ".join(names[:NAMED]) + (", …" if len(names) > NAMED else "")
        raise UnknownAgent(f"there is no agent {agent!r:.80}, here or at a worker; there are: {there}", names)

    async def _somebody_works(self) -> bool:
        return any([await self.store.lives(one.owner, self.owner) for one in await self.store.workers()])

    async def open_interaction(
        self, participants: Iterable[Author | tuple[AuthorType, str]] = (), *, interaction: str | None = None,
        key: str | None = None, by: str | None = None, tenant: str = "default",
    ) -> InteractionRow:  # fmt: skip  # two rows
        """Begin a conversation before its first run.

        Args:
            participants: who takes part, such as ``("Human", "ada")``; whoever a run brings in comes to them.
            interaction: its id; None: a new one.
            key: a repeat with the same key and request gives the first one.
            by: who begins it; part of the request.
            tenant: whose.

        Raises:
            Conflict: there is an interaction of this id, or the key was used for another request.
        """
        self._check()
        who = joined((), (one if isinstance(one, Author) else author(*one, tenant) for one in participants))
        digest = None
        if key is not None:
            digest = digest_of([participants_json(who), interaction, by])
            interaction = interaction or str(uuid5(_KEYED, f"{tenant}\x00{clean_text(key)}"))
        interaction, at = interaction or self.effects.new_id(), self.effects.now()
        try:
            if await self.store.open_interaction(tenant, interaction, who, at, digest):
                return InteractionRow(interaction, tenant, at, who, None)
        except Conflict:
            if key is None:
                raise
            raise Conflict("this key was used for another interaction; take another key") from None
        return await self.store.interaction(tenant, interaction)

    async def send(
        self, run_id: str, text: Prompt, *, by: str | None = None, key: str | None = None, tenant: str = "default"
    ) -> bool:
        """Queue a message for a run: text, or a list of texts, images, sounds and files.

        Args:
            run_id: the run.
            text: what the model reads.
            by: who says it.
            key: a repeat with the same key and message is not queued again.
            tenant: whose run it is.

        Returns:
            True: the run is open and reads it when its batch is complete. False: the run has ended; the message waits
            for the next run of the interaction.

        Raises:
            TypeError, ValueError: no model could read it.
            NotFound
            Conflict: the key was used for another message.
        """
        self._check()
        said, blocks = prompt_of(text)
        author = clean_text(by or "user")
        entry = QueuedEntry(run_id=run_id, at=self.effects.now(), text=said, blocks=blocks, author_name=author)
        request = None
        if key is not None:
            request = clean_text(key), digest_of([[block_to_json(b) for b in blocks] or said, by])
        row = await self.store.post(tenant, run_id, entry, request)
        if run_id in self._drives:
            self._drives[run_id].notify()
        return row.status in OPEN

    async def note(self, run_id: str, text: str, *, by: str | None = None, tenant: str = "default") -> None:
        """Put a note into a run's conversation, for the people who read it: no model does. Raises NotFound."""
        self._check()
        run = (await self.get(run_id, tenant))._state
        text, author = clean_text(text), clean_text(by or "user")
        thread = run.head.thread_id if run.head is not None else None
        entry = NoteEntry(run_id=run_id, thread_id=thread, at=self.effects.now(), text=text, author_name=author)
        await self.store.post(tenant, run_id, entry)
        self.hub.wake(run_id)

    async def resume(self, run_id: str, *, limits: Limits | None = None, tenant: str = "default") -> Run:
        """Go on with a run that ended as limited, under new limits.

        Raises:
            NotFound, NotPending: it did not end as limited. Conflict: its interaction has another open run.
        """
        self._check()
        row = await self.store.run(tenant, run_id)
        agent = self.agents.get(row.agent)
        if agent is None:
            raise UsageError(f"agent {row.agent!r} is not registered here; open the Runtime with it")
        if row.parent is not None:
            raise NotPending(
                f"run {run_id} was begun by run {row.parent}, which went on without it; give the task anew"
            )
        if row.status != "limited":
            raise NotPending(f"run {run_id} is {row.status}; only a limited run can be resumed with new limits")
        await self.heart.start()
        with self._claiming(tenant, run_id):
            lease = await self.store.reopen(row, self.owner)
            if lease is None:
                raise Conflict(f"run {run_id} was taken up by somebody else")
            record = Record(await self.store.entries(tenant, row.interaction_id))
            fold = self._fold(row, record)
            entry = ResumedEntry(run_id=run_id, at=self.effects.now(), limits=self._budget(agent, limits))
            await self.store.commit(lease, [entry])
            record.apply(entry)
            if self.dispatch.here:
                self._drive(agent, lease, fold).resumed = True
            else:
                await self.store.release(lease)
                self.kick(tenant, run_id)
        return Run(cast("Runs", self), fold)


def _fitting(asked: Iterable[Approval], made: Decision) -> list[Approval]:
    """Those that a decision may be about, by the digest or id that it names."""
    return [a for a in asked if made.approval in (None, a.id) and made.digest in (None, a.digest)]

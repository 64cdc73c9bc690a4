"""What waits for a person, and the one rule by which decisions count (contract 7.2)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias, cast

from counterfoil.core.errors import DecisionConflict, NotAllowed, NotPending
from counterfoil.core.jsontext import JsonValue, dumps
from counterfoil.core.turn import moment

ApprovalKind: TypeAlias = Literal["approval", "question", "interrupted"]
Choice: TypeAlias = Literal["approve", "reject", "rerun", "record", "answer"]

CHOICES: Mapping[str, frozenset[str]] = {
    "approval": frozenset({"approve", "reject"}),
    "question": frozenset({"answer", "reject"}),
    "interrupted": frozenset({"rerun", "record"}),
}
"""Which decisions each kind of approval can be given."""


def input_digest(tool_name: str, effective: bytes, after: str | None = None) -> str:
    """SHA-256 (hex) that binds a decision to the tool and the exact effective input, as JSON bytes.

    Args:
        tool_name: the tool.
        effective: the input; JSON holds no NUL, so the parts cannot run together.
        after: the approval that this one replaces: a call that is asked about twice has two digests, so that a repeat
            of the first decision is never taken for the second.
    """
    parts = [tool_name.encode("utf-8", "replace"), effective]
    if after is not None:
        parts.append(after.encode())
    return hashlib.sha256(b"\x00".join(parts)).hexdigest()


@dataclass(frozen=True, slots=True)
class Approval:
    """A call that waits for a person."""

    id: str
    kind: ApprovalKind
    run_id: str
    call_id: str
    tool_name: str
    input: JsonValue
    """What the model asked for, parsed."""
    effective_input: JsonValue
    """What would run: after guards."""
    digest: str
    """Binds a decision to exactly this tool and effective input, and to this approval of them."""
    rule: str | None
    """The policy's rule that asks; None where the tool itself does."""
    reason: str | None
    requested_at: datetime
    expires_at: datetime | None = None
    after: str | None = None
    """The id of an earlier approval of the same call that this one replaces."""
    agent: str = ""
    tenant: str = "default"
    approvers: tuple[str, ...] = ()
    """Who may decide: names of users, and ``role:NAME``; empty: anybody."""
    not_user: str | None = None
    """The user who is kept from deciding: on whose behalf the run works."""
    revision: str | None = None
    """The digest of the policy's rules that asked; None without a policy."""

    @property
    def of_input(self) -> str:
        """The digest of tool and effective input alone, whichever approval of them it is."""
        return input_digest(self.tool_name, dumps(self.effective_input))

    def binds(self, effective: bytes) -> bool:
        """Whether this is the input, as JSON bytes, that a decision on it is bound to."""
        # Without `after`: as version 0.1.0 made every digest.
        return self.digest in (
            input_digest(self.tool_name, effective, self.after),
            input_digest(self.tool_name, effective),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """The approval by field, in camelCase."""
        return {
            "id": self.id,
            "kind": self.kind,
            "runId": self.run_id,
            "callId": self.call_id,
            "toolName": self.tool_name,
            "input": self.input,
            "effectiveInput": self.effective_input,
            "digest": self.digest,
            "rule": self.rule,
            "reason": self.reason,
            "requestedAt": self.requested_at.isoformat(),
            "expiresAt": self.expires_at.isoformat() if self.expires_at else None,
            "after": self.after,
            "agent": self.agent,
            "tenant": self.tenant,
            "approvers": list(self.approvers),
            "notUser": self.not_user,
            "revision": self.revision,
        }


def approval_from_json(data: Mapping[str, JsonValue]) -> Approval:
    """The approval that ``to_json`` wrote."""
    text = cast("Mapping[str, str]", data)
    return Approval(
        id=text["id"],
        kind=cast("ApprovalKind", data["kind"]),
        run_id=text["runId"],
        call_id=text["callId"],
        tool_name=text["toolName"],
        input=data["input"],
        effective_input=data["effectiveInput"],
        digest=text["digest"],
        rule=text["rule"],
        reason=text["reason"],
        requested_at=datetime.fromisoformat(text["requestedAt"]),
        expires_at=datetime.fromisoformat(text["expiresAt"]) if data["expiresAt"] else None,
        after=text["after"],
        agent=text["agent"],
        tenant=text["tenant"],
        approvers=tuple(cast("list[str]", data["approvers"])),
        not_user=text["notUser"],
        revision=text.get("revision"),
    )


@dataclass(frozen=True, slots=True)
class Decision:
    """What a person decided about one call."""

    choice: Choice
    by: str | None
    reason: str | None = None
    input: bytes | None = None
    """JSON bytes of an edited effective input; approve alone."""
    digest: str | None = None
    """What the person saw; None: whatever is pending."""
    value: JsonValue = None
    """The answer's text, or the recorded result as JSON."""
    at: int = 0
    """Microseconds since 1970, UTC."""
    roles: tuple[str, ...] = ()
    """Roles of the person, for approvals that only some may decide."""
    approval: str | None = None
    """Id of the approval that the person saw; None: the one with that digest, else whatever is pending."""

    def same_as(self, other: Decision) -> bool:
        """An equal repeat: same choice, same input, same value; author, reason and time do not count."""
        return (self.choice, self.input, self.value) == (other.choice, other.input, other.value)


def check_person(approval: Approval, new: Decision) -> None:
    """Refuse whoever may not decide (contract 10).

    Raises:
        NotAllowed
    """
    if approval.not_user is not None and new.by == approval.not_user:
        raise NotAllowed(f"{new.by} asked for call {approval.call_id} and may not decide on it; somebody else must")
    allowed = approval.approvers
    if approval.kind == "question" and new.by is None:
        return  # nobody else is named, so it is who was asked
    if not allowed or new.by in allowed or any(f"role:{role}" in allowed for role in new.roles):
        return
    who = new.by or "nobody named"
    raise NotAllowed(f"call {approval.call_id} may be decided by {', '.join(allowed)}, not by {who}")


def meant(asked: Sequence[Approval], new: Decision) -> int:
    """Which of a call's approvals a decision is about, by its place in ``asked``.

    The one that it names by id or digest. One that names none is about the newest; but where that takes no such
    choice, and an earlier one does, it can only be a repeat of what was decided there.

    Args:
        asked: every approval of the call, oldest first; at least one.
        new: what came now.

    Raises:
        NotPending: the call has no approval of that id.
    """
    newest = len(asked) - 1
    if new.approval is not None:
        for place, approval in enumerate(asked):
            if approval.id == new.approval:
                return place
        raise NotPending(
            f"call {asked[-1].call_id} of run {asked[-1].run_id} has no approval {new.approval}; it has {asked[-1].id}"
        )
    places = range(newest, -1, -1)
    if new.digest is not None:
        return next((place for place in places if asked[place].digest == new.digest), newest)
    return next((place for place in places if new.choice in CHOICES[asked[place].kind]), newest)


def expired(approval: Approval, at: datetime) -> bool:
    """Whether nobody decided in time, which decides by itself (4081)."""
    return approval.expires_at is not None and at >= approval.expires_at


def settle(approval: Approval, first: Decision | None, new: Decision, *, open_: bool) -> bool:
    """Whether ``new`` is the one decision that counts.

    Args:
        approval: what waits, or waited.
        first: the decision on record, if there is one.
        new: what came now.
        open_: the call still awaits a decision (not cancelled, expired or settled otherwise).

    Returns:
        True: put it on record. False: an equal repeat; acknowledge it and change nothing.

    Raises:
        DecisionConflict: it differs from the decision on record, or was made for another input.
        NotPending: no decision exists and none is awaited.
        NotAllowed: this person may not decide.
    """
    check_person(approval, new)
    if first is not None:
        if first.same_as(new) and new.digest in (None, first.digest, approval.digest):
            return False
        made = f"{first.choice} by {first.by or '?'}"
        raise DecisionConflict(
            f"call {approval.call_id} of run {approval.run_id} was decided before ({made}); the first decision stands"
        )
    if not open_:
        raise NotPending(
            f"call {approval.call_id} of run {approval.run_id} awaits no decision any more; list the approvals that do"
        )
    if approval.expires_at is not None and expired(approval, moment(new.at)):
        raise NotPending(f"the approval of call {approval.call_id} expired at {approval.expires_at.isoformat()}")
    if new.choice not in CHOICES[approval.kind]:
        wanted = " or ".join(sorted(CHOICES[approval.kind]))
        raise NotPending(f"call {approval.call_id} waits for {wanted}, not for {new.choice}")
    if new.digest is not None and new.digest != approval.digest:
        raise DecisionConflict(
            f"the decision was made for another input (digest {new.digest[:12]}…, "
            f"pending {approval.digest[:12]}…); read the approval again"
        )
    return True

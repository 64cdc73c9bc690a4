"""What a policy decided on a call, and which of several verdicts wins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, get_args

from counterfoil.core.jsontext import JsonValue

VerdictName: TypeAlias = Literal["allow", "ask", "deny"]
"""What may become of a call: it runs, it waits for a person, it is refused."""

VERDICT_NAMES: tuple[str, ...] = get_args(VerdictName)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a policy decided on one call, and by which rule."""

    verdict: VerdictName
    rule: str | None
    """The rule that decided; None where none did, but the policy's default or ``needs_approval``."""
    reason: str | None
    """That rule's reason."""
    revision: str | None
    """The digest of the policy's rules; None without a policy."""
    error: str | None = None
    """Set when the policy could not be evaluated: the call is refused with POLICY_ERROR, and ``rule`` is the
    rule that failed. For the developer; holds an exception's text."""
    expires_in: float | None = None
    """Seconds after which the approval expires that an ``ask`` makes; None: as the limits say."""
    rule_digest: str | None = None
    """The digest of that rule alone: equal digests are the same unchanged rule, whatever else changed."""
    approvers: tuple[str, ...] = ()
    """Who may decide on the approval that an ``ask`` makes; empty: anybody."""
    not_caller: bool = False
    """Whether the run's own user is kept from deciding."""

    def to_json(self) -> dict[str, JsonValue]:
        """The verdict by field."""
        return {
            "verdict": self.verdict,
            "rule": self.rule,
            "reason": self.reason,
            "revision": self.revision,
            "error": self.error,
            "expires_in": self.expires_in,
            "rule_digest": self.rule_digest,
            "approvers": list(self.approvers),
            "not_caller": self.not_caller,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, JsonValue]) -> Verdict:
        """The verdict that `to_json` wrote.

        Raises:
            ValueError: ``data`` holds no verdict.
        """
        if data.get("verdict") not in VERDICT_NAMES:
            raise ValueError(f"expected 'allow', 'ask' or 'deny', got {data.get('verdict')!r}")
        text = cast("Mapping[str, str | None]", data)
        return cls(
            cast("VerdictName", data["verdict"]),
            text.get("rule"),
            text.get("reason"),
            text.get("revision"),
            text.get("error"),
            cast("float | None", data.get("expires_in")),
            text.get("rule_digest"),
            tuple(cast("list[str]", data.get("approvers") or ())),
            bool(data.get("not_caller")),
        )


_STRICTNESS = {"allow": 0, "ask": 1, "deny": 3}
_ERROR = 2
"""Below a deny that matched, which refuses without doubt; above all that would let the call go on."""


def strictest(verdicts: Iterable[Verdict], otherwise: Verdict) -> Verdict:
    """The verdict that wins: a deny that matched, then an error, then ask, then allow; of equals the first.

    Args:
        verdicts: one for each rule that matched or failed, in the order of the rules.
        otherwise: what holds when there is none.
    """
    best, most = otherwise, -1
    for verdict in verdicts:
        rank = _STRICTNESS[verdict.verdict] if verdict.error is None else _ERROR
        if rank > most:
            best, most = verdict, rank
    return best


def unmatched(default: VerdictName, revision: str | None, *, read_only: bool, needs_approval: bool) -> Verdict:
    """The verdict where no rule matches.

    Allow for a ``read_only`` tool, and else the default; but ``needs_approval`` asks where that would allow.
    """
    name: VerdictName = "allow" if read_only else default
    return Verdict("ask" if needs_approval and name == "allow" else name, None, None, revision)

"""A policy as it was written: its rules, and what they may look at."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TypeAlias, cast

from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue, clean_text, dumps
from counterfoil.core.verdict import VERDICT_NAMES, VerdictName

KNOWN_KEYS: Mapping[str, tuple[str, ...]] = {
    "tool": ("name", "read_only", "idempotent", "destructive"),
    "caller": ("tenant", "user", "roles", "attributes"),
    "run": ("id", "agent", "step", "calls", "hour", "weekday", "parent", "depth"),
    "thread": ("id", "kind"),
}
"""The keys of each object of `Facts` but ``input``, whose keys are the tool's own."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What conditions see of one call. Conditions never see anything else."""

    tool: Mapping[str, JsonValue]
    """``name`` (text), ``read_only``, ``idempotent``, ``destructive`` (bools)."""
    input: JsonValue
    """The input that the body would get."""
    caller: Mapping[str, JsonValue]
    """``tenant`` (text), ``user`` (text or null), ``roles`` (list of texts), ``attributes`` (object)."""
    run: Mapping[str, JsonValue]
    """``id``, ``agent`` (texts), ``step`` (0-based), ``calls`` (those of the run before this one), ``hour``
    (0 to 23) and ``weekday`` (0 is Monday, 6 is Sunday), both in UTC at the time of judging; ``parent`` (the id of the
    run whose call waits for this one, or null) and ``depth`` (runs above it; 0 is a root run)."""
    thread: Mapping[str, JsonValue]
    """``id`` (text, null for the main thread), ``kind`` (``main``, ``private``, ``dispatch`` or
    ``question``)."""


Condition: TypeAlias = "Callable[[Facts], object]"
"""Looks at the facts and says True or False, or an awaitable of it; anything else is an error."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a policy.

    Raises:
        DefinitionError: a field that cannot be used; the message names rule and field.
    """

    name: str
    """Unique in its policy; on record with each decision that the rule makes."""
    then: VerdictName
    """The verdict on a call that the rule matches."""
    tool: str = "*"
    """A glob over the tool's name (``*``, ``?``, ``[abc]``, ``[!abc]``), looked at first; case counts."""
    when: str | Condition | None = None
    """A CEL text, or a Python function of the `Facts`, sync or async; None matches every call."""
    reason: str | None = None
    """Why, in words: the model reads it on a denial, the person who decides reads it on an approval."""
    expires_in: float | None = None
    """Seconds after which the approval that this rule asks for expires; None: as the limits say."""
    approvers: tuple[str, ...] = ()
    """Who may decide: names of users, and ``role:NAME``; empty: anybody."""
    not_caller: bool = False
    """Whether the user on whose behalf the run works is kept from deciding."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise DefinitionError(f"a rule needs a name that is not empty, got {self.name!r:.80}; give it one")
        if self.then not in VERDICT_NAMES:
            raise self._fault("then", "'allow', 'ask' or 'deny'", self.then)
        if not isinstance(self.tool, str) or not self.tool:
            raise self._fault("tool", "a glob such as 'delete_*' (leave it out for every tool)", self.tool)
        if isinstance(self.when, str):
            if not self.when.strip():
                raise self._fault("when", "a condition (leave it out for none)", self.when)
        elif self.when is not None and not callable(self.when):
            raise self._fault("when", "a CEL text or a function of the facts", self.when)
        if self.reason is not None and not isinstance(self.reason, str):
            raise self._fault("reason", "a text", self.reason)
        self._check_expiry()
        self._check_approvers()
        for field in ("name", "reason"):
            text = cast("str | None", getattr(self, field))
            if text is not None and not text.isascii():
                object.__setattr__(self, field, clean_text(text))

    def _check_expiry(self) -> None:
        seconds = self.expires_in
        if seconds is None:
            return
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
            raise self._fault("expires_in", "seconds, a number above 0", seconds)
        if not (math.isfinite(seconds) and seconds > 0):
            raise self._fault("expires_in", "seconds, a number above 0", seconds)
        if self.then != "ask":
            raise DefinitionError(
                f"rule {self.name!r}: expires_in belongs to a rule that asks, and this one says "
                f"{self.then!r}; remove expires_in, or let then be 'ask'"
            )

    def _check_approvers(self) -> None:
        names = self.approvers
        if isinstance(names, list):
            object.__setattr__(self, "approvers", tuple(names))
        elif not isinstance(names, tuple):
            raise self._fault("approvers", "a list of names, such as ['grace', 'role:lead']", names)
        for name in self.approvers:
            if not isinstance(name, str) or not name.strip():
                raise self._fault("approvers", "a list of names that are not empty", name)
        if not isinstance(self.not_caller, bool):
            raise self._fault("not_caller", "true or false", self.not_caller)
        if (self.approvers or self.not_caller) and self.then != "ask":
            raise DefinitionError(
                f"rule {self.name!r}: approvers and not_caller belong to a rule that asks, and this one says "
                f"{self.then!r}; remove them, or let then be 'ask'"
            )

    def _fault(self, field: str, expected: str, got: object) -> DefinitionError:
        return DefinitionError(f"rule {self.name!r}: {field} must be {expected}, got {got!r:.80}")

    def covers(self, tool_name: str) -> bool:
        """Whether the glob matches this tool's name."""
        return fnmatchcase(tool_name, self.tool)

    def material(self, condition: JsonValue) -> dict[str, JsonValue]:
        """What the rule's digest is made of; ``condition`` stands for ``when``, which may be a function."""
        return {
            "name": self.name,
            "tool": self.tool,
            "when": condition,
            "then": self.then,
            "reason": self.reason,
            "expires_in": self.expires_in,
            "approvers": list(self.approvers),
            "not_caller": self.not_caller,
        }


@dataclass(frozen=True, slots=True)
class RuleSet:
    """A policy as it was written, before its conditions are compiled."""

    rules: tuple[Rule, ...] = ()
    default: VerdictName = "ask"
    """The verdict where no rule matches and the tool is not ``read_only``."""
    repeat_block: bool = False
    """Whether the very call that a person rejected in a run is refused when it comes again there."""

    def __post_init__(self) -> None:
        if self.default not in VERDICT_NAMES:
            raise DefinitionError(f"a policy's default must be 'allow', 'ask' or 'deny', got {self.default!r:.80}")
        if not isinstance(self.repeat_block, bool):
            raise DefinitionError(f"a policy's repeat_block must be true or false, got {self.repeat_block!r:.80}")
        names: set[str] = set()
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise DefinitionError(f"a policy's rules must be Rule(…), got {rule!r:.80}")
            if rule.name in names:
                raise DefinitionError(
                    f"two rules have the name {rule.name!r}; decisions are on record by name, so rename one"
                )
            names.add(rule.name)


def digest(material: JsonValue) -> str:
    """SHA-256 of a JSON value, in hex; the order of an object's keys counts."""
    return hashlib.sha256(dumps(material)).hexdigest()

"""ToolResult: what a tool returns, and what the gateway makes of every call (contract 1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from counterfoil.core.content import (
    BLOCK_TYPES,
    Block,
    Json,
    Text,
    block_from_json,
    block_text,
    block_to_json,
)
from counterfoil.core.errors import check_own_code
from counterfoil.core.extensions import NO_EXTENSIONS, Extensions
from counterfoil.core.jsontext import JsonValue, clean_text, dumps, loads, normal
from counterfoil.core.outcome import (
    SUCCEEDED,
    Denied,
    Failed,
    Skipped,
    Succeeded,
    ToolFailure,
    ToolOutcome,
    outcome_from_json,
    outcome_to_json,
)

NO_OUTPUT = "(no output)"
"""What a model reads of a result that has no text (contract 4: model text is never empty)."""


@dataclass(frozen=True, slots=True, repr=False)
class ToolResult:
    """How one call ended and what each reader gets of it. Immutable; compares by all but extensions."""

    content: tuple[Block, ...]
    """What the model reads; at least one block."""
    outcome: ToolOutcome = SUCCEEDED
    """How the call ended."""
    details: JsonValue = None
    """Metadata for logs, timeline and replay; stored, never sent to a model."""
    extensions: Extensions = field(default=NO_EXTENSIONS, compare=False)
    """In-process values for hooks and tracing; never stored, never sent."""
    terminate: bool = False
    """This call's vote to end the run (contract 5)."""
    narration: str | None = None
    """One sentence for a person, from typed tool state."""

    def __post_init__(self) -> None:
        if not isinstance(self.content, tuple) or not self.content:
            raise ValueError(f"ToolResult needs a tuple of at least one block, got {self.content!r:.80}")
        for block in self.content:
            if not isinstance(block, BLOCK_TYPES):
                raise TypeError(f"expected content blocks, got {type(block).__name__}; wrap data in Json(…)")
        match self.outcome:
            case Succeeded() | Failed() | Denied(by="tool"):
                pass
            case other:
                raise ValueError(
                    f"a tool cannot make a result that is {type(other).__name__}: only the gateway can; "
                    "use ToolResult.text, .error or .denied"
                )
        if self.details is not None:
            _set(self, "details", normal(self.details))
        if self.narration is not None:
            _set(self, "narration", clean_text(self.narration).strip() or None)

    @classmethod
    def text(cls, text: str) -> ToolResult:
        """A success whose text is ``text``, verbatim."""
        return cls((Text(text),))

    @classmethod
    def json(cls, value: object) -> ToolResult:
        """A success whose content is a JSON value."""
        return cls((Json(value),))

    @classmethod
    def blocks(cls, *blocks: Block) -> ToolResult:
        """A success of several blocks.

        Raises:
            ValueError: none were given.
        """
        if not blocks:
            raise ValueError("ToolResult.blocks needs at least one block; for no output return None")
        return cls(blocks)

    @classmethod
    def terminal(cls, text: str) -> ToolResult:
        """A success that votes to end the run."""
        return cls((Text(text),), terminate=True)

    @classmethod
    def error(cls, text: str, failure: ToolFailure | None = None) -> ToolResult:
        """A failure whose model text is ``text``; without a ``failure`` it has no code.

        Raises:
            ValueError: the failure's code is one of the gateway's.
        """
        if failure is None:
            failure = ToolFailure(message=text)
        check_own_code(failure.code)
        return cls((Text(text),), Failed(failure))

    @classmethod
    def denied(cls, text: str) -> ToolResult:
        """The tool's own check refused the call; ``text`` is what the model reads."""
        return cls((Text(text),), Denied("tool", None, clean_text(text)))

    def with_terminate(self, terminate: bool = True) -> ToolResult:  # noqa: FBT001, FBT002  # the vote is its one word
        """A copy with this vote."""
        return self._with(terminate=bool(terminate))

    def with_narration(self, narration: str) -> ToolResult:
        """A copy with this sentence, trimmed; white space alone is dropped."""
        return self._with(narration=clean_text(narration).strip() or None)

    def with_details(self, details: object) -> ToolResult:
        """A copy with these details, as JSON; later changes of ``details`` change nothing here.

        Raises:
            ValueError: they have no JSON form.
        """
        return self._with(details=normal(details))

    def with_extensions(self, *values: object) -> ToolResult:
        """A copy with these extensions in place of all earlier ones."""
        return self._with(extensions=Extensions(*values))

    def with_extension(self, value: object) -> ToolResult:
        """A copy with one more extension; it replaces an earlier one of its type."""
        return self._with(extensions=Extensions(*self.extensions, value))

    def __copy__(self) -> ToolResult:
        """A copy that shares nothing that could be changed in place."""
        return self._with(details=None if self.details is None else normal(self.details))

    def _with(self, **changes: object) -> ToolResult:
        fields = (self.content, self.outcome, self.details, self.extensions, self.terminate, self.narration)
        result = seal(*fields)
        for name, value in changes.items():
            _set(result, name, value)
        return result

    @property
    def model_output(self) -> str:
        """The text of ``content`` that a model reads; never empty."""
        content = self.content
        text = block_text(content[0]) if len(content) == 1 else "\n".join(map(block_text, content))
        return text if text and not text.isspace() else NO_OUTPUT

    @property
    def is_error(self) -> bool:
        """True unless the call succeeded or was skipped."""
        return not isinstance(self.outcome, (Succeeded, Skipped))

    @property
    def executed(self) -> bool:
        """True when the tool ran to its end and succeeded."""
        return isinstance(self.outcome, Succeeded)

    def to_dict(self) -> dict[str, JsonValue]:
        """The result as a JSON object, without extensions."""
        return {
            "content": [block_to_json(b) for b in self.content],
            "outcome": outcome_to_json(self.outcome),
            "details": self.details,
            "terminate": self.terminate,
            "narration": self.narration,
        }

    def to_json(self) -> str:
        """The result as JSON text, without extensions."""
        return dumps(self.to_dict()).decode()

    @classmethod
    def from_dict(cls, data: Mapping[str, JsonValue]) -> ToolResult:
        """The result that `to_dict` wrote, with empty extensions.

        Raises:
            ValueError: ``data`` is no result.
        """
        return seal(
            tuple(block_from_json(b) for b in cast("list[dict[str, JsonValue]]", data["content"])),
            outcome_from_json(cast("dict[str, JsonValue]", data["outcome"])),
            data.get("details"),
            NO_EXTENSIONS,
            bool(data.get("terminate")),
            cast("str | None", data.get("narration")),
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> ToolResult:
        """The result that `to_json` wrote, with empty extensions."""
        return cls.from_dict(cast("dict[str, JsonValue]", loads(text)))

    def __repr__(self) -> str:
        kinds = ", ".join(b.type for b in self.content)
        return f"ToolResult({type(self.outcome).__name__}, content=[{kinds}], terminate={self.terminate})"


_set = object.__setattr__


def seal(  # the fields of ToolResult, in their order
    content: tuple[Block, ...],
    outcome: ToolOutcome,
    details: JsonValue = None,
    extensions: Extensions = NO_EXTENSIONS,
    terminate: bool = False,  # noqa: FBT001, FBT002  # as above
    narration: str | None = None,
) -> ToolResult:
    """A result with any outcome: for the gateway and the record alone, never for a tool or a hook."""
    result = _Open()
    result.content, result.outcome, result.details = content, outcome, details
    result.extensions, result.terminate, result.narration = extensions, terminate, narration
    result.__class__ = ToolResult  # type: ignore[assignment]  # mypy: no change of class
    return result  # type: ignore[return-value]  # as above


class _Open:
    """A result whose fields can be set: to set those of a frozen one takes four times as long."""

    __slots__ = ToolResult.__slots__
    content: tuple[Block, ...]
    outcome: ToolOutcome
    details: JsonValue
    extensions: Extensions
    terminate: bool
    narration: str | None

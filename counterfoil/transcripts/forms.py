"""The forms of a transcript: told apart, read and written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from counterfoil.core.errors import DefinitionError
from counterfoil.core.jsontext import JsonValue, normal
from counterfoil.transcripts import anthropic, openai, own
from counterfoil.transcripts.values import Reading, Transcript, array, joined, text, wrong

READERS: Final[Mapping[str, Callable[[list[JsonValue]], Reading]]] = {
    "openai": openai.read_chat,
    "openai-responses": openai.read_responses,
    "anthropic": anthropic.read,
    "counterfoil": own.read,
}
WRITERS: Final[Mapping[str, Callable[[Transcript], list[JsonValue]]]] = {
    "openai": openai.write_chat,
    "openai-responses": openai.write_responses,
    "anthropic": anthropic.write,
    "counterfoil": own.write,
}
FORMATS: Final = tuple(READERS)
"""Forms that can be read and written: messages of Chat Completions, items of Responses, Anthropic's, and our own."""

_NOT_OURS: Final = ("tool_result", "tool_use", "thinking", "redacted_thinking")


def read_messages(messages: object, format: str | None = None) -> Transcript:
    """The conversation that messages amount to, as they are: nothing is repaired.

    Args:
        messages: a list of messages, as JSON or as objects of the provider's SDK; or an object that has it under
            ``messages`` or ``input``, as a request's body does, with ``system`` or ``instructions`` and ``model``
            beside it.
        format: one of `FORMATS`; None: as the messages look.

    Raises:
        DefinitionError: they do not have that form; the text names the message.
    """
    try:
        given = normal(messages)
    except ValueError as error:
        raise DefinitionError(f"the transcript is not plain JSON: {error}") from error
    whole = given if isinstance(given, dict) else {}
    key = "input" if "input" in whole and "messages" not in whole else "messages"
    rows = whole.get(key) if isinstance(given, dict) else given
    if isinstance(rows, str) and key == "input":
        rows = [{"role": "user", "content": rows}]
    if not isinstance(rows, list):
        raise wrong("the transcript", "a list of messages, or an object with messages or input", rows)
    form = format or ("anthropic" if "system" in whole else "openai-responses" if key == "input" else look(rows))
    if form not in READERS:
        raise DefinitionError(f"there is no transcript format {form!r:.60}; there are {', '.join(FORMATS)}")
    read = READERS[form](rows)
    before = anthropic.system_text(whole.get("system"))
    told = whole.get("instructions")
    model, source = whole.get("model"), whole.get("id")
    transcript = Transcript(
        tuple(read.items),
        before or (text(told, "instructions") if told is not None else ""),
        model if isinstance(model, str) else "",
        form,
        source if isinstance(source, str) else "",
        tuple(read.notes),
    )
    return joined(transcript)


def look(messages: Sequence[JsonValue]) -> str:
    """The form that messages seem to have; ``openai`` where they have nothing of their own."""
    for message in messages:
        if not isinstance(message, dict):
            continue
        kind = message.get("type")
        if kind == "reasoning" or (isinstance(kind, str) and openai.STEPS.fullmatch(kind)):
            return "openai-responses"
        if "tool_name" in message or "error" in message:
            return "counterfoil"
        for call in array(message.get("tool_calls"), "tool_calls"):
            if isinstance(call, dict):
                return "openai" if "function" in call or "type" in call else "counterfoil"
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            kind = block.get("type") if isinstance(block, dict) else None
            if kind in _NOT_OURS:
                return "anthropic"
            if kind in ("input_text", "output_text"):
                return "openai-responses"
    return "openai"


def write_messages(transcript: Transcript, format: str) -> list[JsonValue]:
    """The messages of a whole conversation; on Anthropic's wire and Responses without the instructions.

    Raises:
        DefinitionError: there is no such format, or the transcript is broken: `repair` it.
    """
    if format not in WRITERS:
        raise DefinitionError(f"there is no transcript format {format!r:.60}; there are {', '.join(FORMATS)}")
    return WRITERS[format](transcript)


def body_of(transcript: Transcript, messages: list[JsonValue], format: str) -> JsonValue:
    """What a file holds: the messages, and around them the fields of a request where the instructions are one."""
    if format == "anthropic" and transcript.instructions:
        return {"system": transcript.instructions, "messages": messages}
    if format == "openai-responses":
        told: dict[str, JsonValue] = {"instructions": transcript.instructions} if transcript.instructions else {}
        return {**told, "input": messages}
    return cast("JsonValue", messages)

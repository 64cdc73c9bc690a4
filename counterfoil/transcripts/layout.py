"""What stands in which order in a turn, where our record of the turn alone does not say it.

The form is that of the models' adapters (`{"wire", "origin", "items"}` of a turn's ``reasoning``): the provider's
opaque items as they came, a place with the number of its characters for each text, and one for each call. What is
imported has an origin that no server has, so that no server gets it back; an export for the same wire writes it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from counterfoil.core.jsontext import JsonValue
from counterfoil.model import ModelCall, ModelTurn

BETWEEN: Final = "\n\n"
"""Between the texts of one turn, as the adapters join them."""
ORIGIN: Final = "imported"


def layout_of(pieces: Sequence[tuple[str, JsonValue]], wire: str, text_type: str) -> ModelTurn:
    """The turn of these pieces: ``text`` with a text, ``call`` with its fields, or ``opaque``."""
    texts: list[str] = []
    calls: list[ModelCall] = []
    items: list[JsonValue] = []
    for kind, value in pieces:
        match kind, value:
            case "text", str(said):
                if said:
                    texts.append(said)
                    items.append({"type": text_type, "chars": len(said)})
            case "call", {"id": call_id, "name": str(name), "arguments": str(raw)}:
                calls.append(ModelCall(call_id if isinstance(call_id, str) else None, name, raw))
                items.append({"type": "call"})
            case _:
                items.append(value)
    usual = [kind for kind, _ in pieces if kind != "opaque"]
    worth = any(kind == "opaque" for kind, _ in pieces) or usual != sorted(usual, reverse=True) or len(texts) > 1
    reasoning: JsonValue = {"wire": wire, "origin": ORIGIN, "items": items} if worth else None
    return ModelTurn(BETWEEN.join(texts), tuple(calls), "calls" if calls else "end", reasoning=reasoning)


def laid_out(turn: ModelTurn, wire: str, text_type: str) -> Iterator[tuple[str, object]]:
    """``text`` with a str, ``call`` with a `ModelCall`, or ``opaque`` with an item, as they came on this wire.

    Where the turn is another wire's, or not any more what it was: its text, then its calls.
    """
    kept = turn.reasoning if isinstance(turn.reasoning, dict) else {}
    items = kept.get("items") if kept.get("wire") == wire else None
    places = [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
    sizes = [place.get("chars") for place in places if place.get("type") == text_type]
    texts: list[str] = []
    at = 0
    for size in sizes:
        at += len(BETWEEN) if texts else 0
        texts.append(turn.text[at : at + size] if isinstance(size, int) else "")
        at += len(texts[-1])
    same = BETWEEN.join(texts) == turn.text and sum(p.get("type") == "call" for p in places) == len(turn.calls)
    said, calls = iter(texts), iter(turn.calls)
    for place in places if same else ():
        kind = place.get("type")
        if kind == text_type:
            if (piece := next(said)).strip():
                yield "text", piece
        elif kind == "call":
            yield "call", next(calls)
        else:
            yield "opaque", place
    if not same or not places:
        if turn.text.strip() or not turn.calls:
            yield "text", turn.text
        for call in turn.calls:
            yield "call", call

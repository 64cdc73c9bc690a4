"""Content blocks: what a model reads of a result, as values."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias, cast

from counterfoil.core.jsontext import JsonValue, clean_text, dumps, loads


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text; lone surrogates become U+FFFD."""

    text: str
    size: int = field(init=False, repr=False, compare=False)
    """Bytes in UTF-8; counted here, where the text is checked anyway."""
    type: ClassVar[str] = "text"

    def __post_init__(self) -> None:
        text = self.text
        if not isinstance(text, str):
            raise TypeError(f"Text takes a str, got {type(text).__name__}; use Json(value) for data")
        if text.isascii():
            object.__setattr__(self, "size", len(text))
            return
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            text = clean_text(text)
            size = len(text.encode())
            object.__setattr__(self, "text", text)
        object.__setattr__(self, "size", size)


class Json:
    """A JSON value. It is kept as its JSON text, so that nobody can change it and it is encoded once."""

    __slots__ = ("size", "text")
    type: ClassVar[str] = "json"
    text: str
    """The JSON text, exactly as a model reads it."""
    size: int
    """Bytes in UTF-8."""

    def __init__(self, value: object) -> None:
        self._fill(dumps(value))

    def _fill(self, data: bytes) -> None:
        object.__setattr__(self, "text", data.decode())
        object.__setattr__(self, "size", len(data))

    @classmethod
    def from_bytes(cls, data: bytes) -> Json:
        """A block of JSON bytes that are known to be valid."""
        block = cls.__new__(cls)
        block._fill(data)
        return block

    @classmethod
    def from_text(cls, text: str) -> Json:
        """A block of JSON text that is known to be valid."""
        return cls.from_bytes(text.encode())

    @property
    def value(self) -> JsonValue:
        """The value, parsed anew at each read."""
        return loads(self.text)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Json is immutable; make a new block instead of setting {name!r}")

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Json) else NotImplemented

    def __hash__(self) -> int:
        return hash((Json, self.text))

    def __repr__(self) -> str:
        return f"Json({len(self.text)} characters)"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Json.from_text, (self.text,)


def _check(block: Image | Audio | File | Link | Kept) -> None:
    """Refuse data that is no bytes while its author is near; clean the texts, so that storing cannot fail."""
    for name in block.__dataclass_fields__:
        value: object = getattr(block, name)
        if name == "data" and not isinstance(value, bytes):
            if not isinstance(value, (bytearray, memoryview)):
                kind = type(block).__name__
                raise TypeError(f"{kind} takes bytes, got {type(value).__name__}; encode or decode it first")
            object.__setattr__(block, name, bytes(value))
        elif isinstance(value, str) and not value.isascii():
            object.__setattr__(block, name, clean_text(value))


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its bytes and media type, such as ``image/png``."""

    data: bytes
    mime: str = "image/png"
    type: ClassVar[str] = "image"

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Audio:
    """A sound: its bytes and media type, such as ``audio/wav``."""

    data: bytes
    mime: str = "audio/wav"
    type: ClassVar[str] = "audio"

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class File:
    """Any other bytes, with media type and, if it has one, a name."""

    data: bytes
    mime: str = "application/octet-stream"
    name: str | None = None
    type: ClassVar[str] = "file"

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Link:
    """A pointer to something that the model may know by its URI."""

    uri: str
    title: str | None = None
    type: ClassVar[str] = "link"

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class Kept:
    """A pointer to a text that is stored apart (contract 6), with what the model reads in its place."""

    id: str
    """The id under which the whole text is stored (a UUID)."""
    size: int
    """Bytes of the whole text in UTF-8."""
    preview: str
    """Head, a line that says what was left out, tail: exactly what the model reads."""
    json: bool = False
    """True when the whole text is the JSON of one value."""
    type: ClassVar[str] = "kept"

    def __post_init__(self) -> None:
        _check(self)


Block: TypeAlias = "Text | Json | Image | Audio | File | Link | Kept"
"""One piece of content."""

BLOCK_TYPES: tuple[type, ...] = (Text, Json, Image, Audio, File, Link, Kept)


def block_text(block: Block) -> str:
    """The block as text: media as a placeholder that names kind, media type and size in bytes."""
    match block:
        case Text() | Json():
            return block.text
        case Kept():
            return block.preview
        case Link():
            return f"{block.title} <{block.uri}>" if block.title else block.uri
        case File(name=str() as name):
            return f"[file {name}, {block.mime}, {len(block.data)} bytes]"
        case _:
            return f"[{block.type}, {block.mime}, {len(block.data)} bytes]"


def block_to_json(block: Block) -> dict[str, JsonValue]:
    """The block as ``{"type": …}``; data in base64."""
    match block:
        case Text():
            return {"type": "text", "text": block.text}
        case Json():
            return {"type": "json", "value": block.value}
        case Link():
            return {"type": "link", "uri": block.uri, "title": block.title}
        case Kept():
            return {
                "type": "kept",
                "id": block.id,
                "size": block.size,
                "preview": block.preview,
                "json": block.json,
            }
        case _:
            out: dict[str, JsonValue] = {
                "type": block.type,
                "data": base64.b64encode(block.data).decode(),
                "mime": block.mime,
            }
            if isinstance(block, File):
                out["name"] = block.name
            return out


def block_from_json(data: Mapping[str, JsonValue]) -> Block:
    """The block that `block_to_json` wrote.

    Raises:
        ValueError: ``data`` is no block.
    """
    try:
        return _block_from_json(data)
    except (KeyError, TypeError) as error:
        kind = data.get("type")
        raise ValueError(f"not a content block of type {kind!r}: {type(error).__name__} {error}") from error


def _block_from_json(data: Mapping[str, JsonValue]) -> Block:
    text = cast("Mapping[str, str]", data)
    match data.get("type"):
        case "text":
            return Text(text["text"])
        case "json":
            return Json(data["value"])
        case "link":
            return Link(text["uri"], text.get("title"))
        case "kept":
            return Kept(text["id"], cast("int", data["size"]), text["preview"], bool(data.get("json")))
        case "image":
            return Image(base64.b64decode(text["data"]), text["mime"])
        case "audio":
            return Audio(base64.b64decode(text["data"]), text["mime"])
        case "file":
            return File(base64.b64decode(text["data"]), text["mime"], text.get("name"))
        case other:
            raise ValueError(f"expected a content block with a known type, got type {other!r}")

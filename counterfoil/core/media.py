"""What a person gives a model beside text: which media the wires read, and what a model reads of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from counterfoil.core.content import Audio, Block, File, Image, Json, Link, Text, block_text
from counterfoil.core.jsontext import clean_text
from counterfoil.core.limits import PROMPT_BYTES

Prompt: TypeAlias = "str | Block | Sequence[str | Block]"
"""A message for a model: text, or texts, images, sounds and files in the order in which it reads them."""

_SIGNATURES: Final[Mapping[bytes, str]] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
    b"fLaC": "audio/flac",
    b"OggS": "audio/ogg",
    b"ID3": "audio/mpeg",
}
"""First bytes of the kinds that providers read (their registrations with IANA)."""
_RIFF: Final = {b"WEBP": "image/webp", b"WAVE": "audio/wav"}


def kind_of(data: bytes) -> str | None:
    """The media type that the bytes have, whatever they are called; None where it is not one that providers read.

    Providers refuse a request in which the name of a medium's type is wrong, and the record would send it again in
    each later request.
    """
    if data.startswith(b"RIFF"):
        return _RIFF.get(data[8:12])
    if len(data) > 1 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2:  # noqa: PLR2004  # a frame of MPEG audio, layer III
        return "audio/mpeg"
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)


def shown_as(block: Block) -> str | None:
    """The media type of a medium that is of a kind that providers read, and is what its block says; else None."""
    match block:
        case Image(data=data):
            family = "image/"
        case Audio(data=data):
            family = "audio/"
        case File(data=data):
            family = "application/pdf"
        case _:
            return None
    kind = kind_of(data)
    return kind if kind is not None and kind.startswith(family) else None


def read_as(block: Block) -> str:
    """What a model reads of a block of a message that is not shown as it is: of a text file its name and its text."""
    text = _text_of(block.data) if isinstance(block, File) and kind_of(block.data) is None else None
    return block_text(block) if text is None else f"{block_text(block)}\n{text}"


def _text_of(data: bytes) -> str | None:
    """The text of a file, where it is text in UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def medium_of(data: bytes, name: str) -> Block:
    """The block of a file that a person adds to a prompt, by its bytes."""
    kind = kind_of(data) or ""
    if kind.startswith("image/"):
        return Image(data, kind)
    if kind.startswith("audio/"):
        return Audio(data, kind)
    return File(data, kind or ("application/octet-stream" if _text_of(data) is None else "text/plain"), name)


def prompt_of(given: object) -> tuple[str, tuple[Block, ...]]:
    """A prompt as text, media in it as placeholders, and its blocks; none where it is text alone.

    Raises:
        TypeError: it is neither text nor blocks.
        ValueError: nothing is in it, a medium is of no kind that a provider reads, or they are too large together.
    """
    if isinstance(given, str):
        return clean_text(given), ()
    parts = list(given) if isinstance(given, Sequence) and not isinstance(given, (bytes, bytearray)) else [given]
    blocks = tuple(Text(part) if isinstance(part, str) else _checked(part) for part in parts)
    if not blocks:
        raise ValueError("expected a prompt with something in it, got an empty list")
    size = sum(len(block.data) for block in blocks if isinstance(block, (Image, Audio, File)))
    if size > PROMPT_BYTES:
        raise ValueError(
            f"the media of a prompt have {size} bytes together, where providers take {PROMPT_BYTES} in a request; "
            "make them smaller, or let a tool read them"
        )
    text = "\n".join(map(block_text, blocks))
    return text, () if len(blocks) == 1 and isinstance(blocks[0], Text) else blocks


def _checked(block: object) -> Block:
    match block:
        case Text() | Json() | Link():
            return block
        case Image():
            want = "an image in PNG, JPEG, GIF or WebP"
        case Audio():
            want = "a sound in WAV, MP3, FLAC or Ogg"
        case File():
            want = "a file of PDF or of text in UTF-8"
            if kind_of(block.data) is None and _text_of(block.data):
                return block
        case _:
            kind = type(block).__name__
            raise TypeError(f"expected a prompt of text, Text, Json, Link, Image, Audio or File, got {kind}")
    if shown_as(block) is not None:
        return block
    raise ValueError(f"expected {want}, by its bytes, got {block_text(block)}; convert it, or let a tool read it")

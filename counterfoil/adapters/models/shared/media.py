"""Media as wires take them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

_SIGNATURES: Final[Mapping[bytes, str]] = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
    b"%PDF-": "application/pdf",
}
"""First bytes of the kinds that providers read (their registrations with IANA)."""


def kind_of(data: bytes) -> str | None:
    """The media type that the bytes have, whatever they are called; None where it is not one that providers read.

    Providers refuse a request in which the name of an image's type is wrong, and the record would send it again in
    each later request.
    """
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for start, kind in _SIGNATURES.items() if data.startswith(start)), None)


def data_url(data: bytes, kind: str) -> str:
    """The bytes as a ``data:`` URL."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"

"""Conversations of other programs onto the record and from it: import, repair, export."""

from counterfoil.transcripts.forms import FORMATS, body_of, read_messages
from counterfoil.transcripts.pairing import repair
from counterfoil.transcripts.recording import export_messages, import_messages, transcript_of
from counterfoil.transcripts.values import Answered, Repair, Reply, Said, Transcript

__all__ = [
    "FORMATS",
    "Answered",
    "Repair",
    "Reply",
    "Said",
    "Transcript",
    "body_of",
    "export_messages",
    "import_messages",
    "read_messages",
    "repair",
    "transcript_of",
]

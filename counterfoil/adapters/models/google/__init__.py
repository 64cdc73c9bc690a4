"""Models behind the wire of Google's Gemini."""

from counterfoil.adapters.models.google.client import GoogleGemini, open_model

__all__ = ["GoogleGemini", "open_model"]

"""Models behind the Responses wire: OpenAI's own, and any server that speaks it."""

from counterfoil.adapters.models.openai.client import OpenAIResponses, open_model

__all__ = ["OpenAIResponses", "open_model"]

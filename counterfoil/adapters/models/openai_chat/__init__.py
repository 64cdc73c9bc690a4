"""Models behind the Chat Completions wire: OpenAI's own, and any server that speaks it."""

from counterfoil.adapters.models.openai_chat.client import OpenAIChat, open_model

__all__ = ["OpenAIChat", "open_model"]

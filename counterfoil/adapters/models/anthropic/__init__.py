"""Models behind Anthropic's Messages."""

from counterfoil.adapters.models.anthropic.client import AnthropicMessages, open_model

__all__ = ["AnthropicMessages", "open_model"]

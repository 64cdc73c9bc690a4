"""Models on this machine."""

from counterfoil.adapters.models.local.client import LocalModel, open_model

__all__ = ["LocalModel", "open_model"]

"""The record in this process: for scripts and tests; it ends with the process."""

from counterfoil.adapters.stores.memory.store import MemoryStore, open_store

__all__ = ["MemoryStore", "open_store"]

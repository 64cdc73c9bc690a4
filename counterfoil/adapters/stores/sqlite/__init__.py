"""The record in one SQLite file that several processes may have open."""

from counterfoil.adapters.stores.sqlite.store import SqliteStore, open_store

__all__ = ["SqliteStore", "open_store"]

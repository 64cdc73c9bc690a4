"""The record in a PostgreSQL database that many processes and machines share."""

from counterfoil.adapters.stores.postgres.store import PostgresStore, open_store

__all__ = ["PostgresStore", "open_store"]

"""DBOS hands segments of runs out to workers, through a database beside the record or in it."""

from counterfoil.adapters.dispatch.dbos.engine import Engine, make_dispatch

__all__ = ["Engine", "make_dispatch"]

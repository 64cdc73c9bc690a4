"""Act two of the demo: an order desk on a real SQLite database; its model turns are scripted.

The run is driven by a worker process, ``python -m counterfoil.doors.cli.demo_desk STORE ORDERS``, so that the demo can
kill it in the middle of a call and let another worker take the run up.
"""

import asyncio
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from counterfoil import Agent, Policy, Rule, Tool, ToolContext, ToolResult, tool
from counterfoil.doors import wiring
from counterfoil.testing import ScriptedModel, call, say

__all__ = ["NAME", "PROMPT", "desk", "labels", "make_orders", "worker"]

NAME: Final = "order-desk"
PROMPT: Final = "Order W100 arrived broken. Put it right."

HANG_SECONDS: Final = 60.0
"""How long the label printer hangs: long enough for the demo to kill its process."""


def make_orders(path: Path) -> None:
    """Make the desk's database: orders, refunds and labels."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, customer TEXT, cents INTEGER, status TEXT)")
        db.execute("CREATE TABLE refunds (order_id TEXT, cents INTEGER, key TEXT UNIQUE)")
        db.execute("CREATE TABLE labels (order_id TEXT, key TEXT UNIQUE)")
        rows = [(f"W{n}", f"customer {n}", 1000 + 37 * n, "delivered") for n in range(100, 1100)]
        db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", rows)


def labels(path: Path, order_id: str) -> int:
    """How many labels were printed for an order: what a person looks up after a crash."""
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("SELECT count(*) FROM labels WHERE order_id = ?", (order_id,)).fetchone()[0])


def _tools(path: Path) -> list[Tool]:
    @tool(read_only=True)
    def get_order(order_id: Annotated[str, Field(pattern="^W[0-9]+$")]) -> ToolResult:
        """Look up an order.

        Args:
            order_id: the order's id, such as W100.
        """
        with closing(sqlite3.connect(path)) as db:
            row = db.execute("SELECT id, customer, cents, status FROM orders WHERE id = ?", (order_id,)).fetchone()
        if row is None:
            return ToolResult.error(f"There is no order {order_id}.")
        order = dict(zip(("id", "customer", "cents", "status"), row, strict=True))
        return ToolResult.json(order).with_narration(f"Looked up order {order_id}")

    @tool(read_only=True, timeout=10)
    def carrier_status(order_id: str) -> str:
        """Ask the carrier where an order is."""
        raise ConnectionRefusedError(f"carrier.example:443 refused GET /track/{order_id}?token=s3cret")

    @tool(destructive=True)
    def delete_order(order_id: str) -> str:
        """Delete an order."""
        return f"deleted {order_id}"  # the policy never lets it come to this

    @tool(lock="order:{order_id}")
    def refund(ctx: ToolContext[None], order_id: str, cents: Annotated[int, Field(gt=0)]) -> ToolResult:
        """Refund part of an order."""
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("INSERT INTO refunds VALUES (?, ?, ?)", (order_id, cents, ctx.idempotency_key))
        text = f"Refunded {cents} cents on {order_id}."
        return ToolResult.text(text).with_narration(f"Refunded {cents / 100:.2f} on {order_id}")

    @tool(read_only=True)
    def export_orders() -> ToolResult:
        """Export all orders as text."""
        with closing(sqlite3.connect(path)) as db:
            rows = db.execute("SELECT * FROM orders ORDER BY id").fetchall()
        text = "\n".join(" | ".join(map(str, row)) for row in rows)
        return ToolResult.text(text).with_narration(f"Exported {len(rows)} orders")

    @tool
    def print_label(ctx: ToolContext[None], order_id: str) -> str:
        """Print a label for the replacement parcel."""
        with closing(sqlite3.connect(path)) as db, db:
            db.execute("INSERT INTO labels VALUES (?, ?)", (order_id, ctx.idempotency_key))
        time.sleep(HANG_SECONDS)  # the printer hangs after it has printed; the demo kills the process here
        return "printed"

    @tool(ends_run=True)
    def close_ticket(summary: str) -> str:
        """Close the ticket with a summary for the customer."""
        return summary

    return [get_order, carrier_status, delete_order, refund, export_orders, print_label, close_ticket]


def desk(path: Path) -> Agent:
    """The order desk on a database that `make_orders` made."""
    turns = [
        [call("get_order", order_id="W100", id="c1"), call("get_order", order="W100", id="c2")],
        [call("get_order", order_id="W101", id="c3"), call("carrier_status", order_id="W100", id="c4")],
        [
            call("delete_order", order_id="W100", id="c5"),
            call("refund", order_id="W100", cents=500, id="c6"),
            call("refund", order_id="W100", cents=4200, id="c7"),
        ],
        [call("export_orders", id="c8"), call("print_label", order_id="W100", id="c9")],
        [call("read_result", call_id="c8", pattern="^W100 ", id="c10")],
        [call("close_ticket", summary="Refunded 47.00 on W100; a replacement is on its way.", id="c11")],
        say("never reached: close_ticket ends the run"),
    ]
    policy = Policy(
        rules=[
            Rule("small-refunds", "allow", tool="refund", when="input.cents <= 2000"),
            Rule("large-refunds", "ask", tool="refund", when="input.cents > 2000", reason="over 20.00"),
            Rule("no-deletes", "deny", tool="delete_*", reason="Orders are kept for the books."),
        ],
        default="allow",
    )
    instructions = "You work at an order desk. Use the tools."
    return Agent(NAME, model=ScriptedModel(turns), instructions=instructions, tools=_tools(path), policy=policy)


async def worker(url: str, path: Path) -> None:
    """Take up the desk's runs in this process until somebody ends it."""
    async with wiring.open_runtime(wiring.Setting("store", url, "argument"), [desk(path)]):
        print("ready", flush=True)
        # The demo holds the other end: when it is gone, however it went, this process has nobody to work for.
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(worker(sys.argv[1], Path(sys.argv[2])))

"""The soak in short: workers on one file are killed, frozen and closed, and the record keeps the laws (contract 7)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.marks import case, law
from tests.soak import soak


@law("7.5", "7.6", "7.2", "2.1", "2.7.lock", "11.verify")
@case("R002", "R013", "R025")
def test_runs_come_to_their_ends_whatever_becomes_of_their_workers(tmp_path: Path) -> None:
    verdict = asyncio.run(soak(tmp_path, seed=7, seconds=12, workers=2, idle=False))
    assert verdict.problems == []
    figures = verdict.figures
    assert figures["killed_in_an_unsafe_body"] >= 1, figures
    assert figures["interrupted"] >= 1, figures
    assert figures["taken_over"] >= 1, figures

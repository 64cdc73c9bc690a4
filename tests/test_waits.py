"""What a run waits for, here and in the runs below it, now and as it stood at an entry (contract 9)."""

from __future__ import annotations

from datetime import timedelta

from counterfoil.core.call_entries import WaitingEntry
from counterfoil.core.entries import PausedEntry
from counterfoil.core.events import RunPaused, event_of
from counterfoil.core.narrate import waits_text
from counterfoil.core.timeline import rows, summary
from counterfoil.core.turn import author, micros, moment
from counterfoil.core.waits import Wait, waits_of
from counterfoil.core.wire import run_json
from tests.marks import case, law
from tests.records import Book

MINER, SMITH = (author("Agent", name, "acme").id for name in ("miner", "smith"))
DIG, HEAT = f"dispatch:{MINER}:run-2", f"dispatch:{SMITH}:run-3"
WORD = "the mine's own word"


def left(book: Book, *, children: bool) -> PausedEntry:
    """The run pauses, or leaves itself to its child runs."""
    found: PausedEntry = book.put(PausedEntry(run_id=book.run_id, thread_id=book.thread, at=book.at, children=children))
    return found


def a_team() -> Book:
    """A manager of two: one asks a person, and the other is at work."""
    book = Book()
    book.begin("chief")
    book.turn(("dispatch", "{}"), ("dispatch", "{}"))
    book.start(0, child="run-2")
    book.start(1, child="run-3")
    book.on("run-2", DIG).begin("miner", parent="run-1", call=(0, 0))
    book.message(WORD)
    book.turn(("blast", f'{{"where": "{WORD}"}}'))
    book.wait(0)
    left(book, children=False)
    book.on("run-3", HEAT).begin("smith", parent="run-1", call=(0, 1))
    book.message(WORD)
    return book


def texts(book: Book, kind: str) -> list[str]:
    """What the rows of a kind say in the manager's own timeline."""
    return [row.text for row in rows(book.record, "run-1", None) if row.kind == kind]


@law("9.rises")
@case("R089")
def test_it_names_a_persons_part_and_an_agent_at_work_wherever_below_they_are() -> None:
    book = a_team()
    run = book.record.runs["run-1"]
    asked, works = waits_of(book.record, run)
    blast = book.record.runs["run-2"].calls[0].record.call_id
    assert asked == Wait("approval", "run-2", "miner", blast, "blast", ())
    assert (works.kind, works.run_id, works.agent, works.tool_name) == ("run", "run-3", "smith", "dispatch")
    shown = run_json(book.record, "run-1", "talk-1")
    assert (shown["waiting"], shown["waitsFor"]) == (1, [asked.to_json(), works.to_json()])
    said = f"a person: blast ({blast} of miner) and for agents at work: smith"
    assert waits_text([asked, works], "run-1") == said
    assert summary(book.record, "run-1").line.endswith(f"2 child runs, 240 tokens, 8.0 s, waits for {said}")
    assert texts(book, "call") == [
        f"dispatch waits for miner, which waits for a person: blast ({blast})",
        "dispatch waits for smith, which is at work",
    ]
    assert WORD not in str([shown, rows(book.record, "run-1", None), summary(book.record, "run-1")])


@law("3.4081", "9.rises")
def test_what_expired_waits_for_nobody_though_it_is_not_settled_yet() -> None:
    book = Book()
    book.begin("chief")
    book.turn(("dispatch", "{}"), ("refund", "{}"))
    book.start(0, child="run-2")
    book.on("run-2", DIG).begin("miner", parent="run-1", call=(0, 0))
    book.turn(("blast", "{}"))
    gone = moment(book.at + 10_000_000)
    book.wait(0, expires_at=gone)
    left(book, children=False)
    book.on("run-1").wait(1, expires_at=gone)
    pause = left(book, children=False)
    before, run = gone - timedelta(microseconds=1), book.record.runs["run-1"]
    assert [one.kind for one in waits_of(book.record, run, before)] == ["approval", "approval"]
    (works,) = waits_of(book.record, run, gone)
    assert (works.kind, works.run_id) == ("run", "run-2"), "it is to go on, and nothing of the manager waits"
    shown = run_json(book.record, "run-1", "talk-1", gone)
    assert (shown["waiting"], shown["waitsFor"]) == (0, [works.to_json()])
    assert summary(book.record, "run-1", gone).waits_for == (works,)
    told = [next(r.text for r in rows(book.record, "run-1", None, now) if r.kind == "call") for now in (before, gone)]
    assert told[0].startswith("dispatch waits for miner, which waits for a person: blast")
    assert told[1] == "dispatch waits for miner, which is at work"
    paused = event_of(pause, book.record)
    assert isinstance(paused, RunPaused)
    assert len(paused.waiting) == 2, "as it stood then"
    book.at = micros(gone)
    late = event_of(left(book, children=False), book.record)
    assert isinstance(late, RunPaused)
    assert late.waiting == ()


@law("9.rises", "9.pause")
def test_a_pause_says_what_was_waited_for_then_however_much_came_since() -> None:
    book = a_team()
    blast = book.record.runs["run-2"].calls[0].record.call_id
    left(book.on("run-1"), children=True)
    book.on("run-3", HEAT).turn(("blast", "{}"))
    book.wait(0)
    left(book, children=False)
    book.on("run-1").resume()
    left(book, children=False)
    book.on("run-2", DIG).decide(0)
    book.resume()
    book.start(0)
    book.result(0)
    book.turn(text="Dug.")
    book.end(answer="Dug.")
    book.on("run-1").resume()
    book.result(0)
    left(book, children=False)
    other = book.record.runs["run-3"].calls[0].record.call_id
    assert texts(book, "paused") == [
        f"waits for a person: blast ({blast} of miner) and for agents at work: smith",
        f"waits for a person: blast ({blast} of miner), blast ({other} of smith)",
        f"waits for a person: blast ({other} of smith)",
    ]


@law("9.rises")
def test_an_agent_is_at_work_while_it_does_more_than_to_wait() -> None:
    book = a_team()
    run = book.record.runs["run-1"]

    def at_work() -> list[str]:
        return [one.agent for one in waits_of(book.record, run) if one.kind == "run"]

    assert at_work() == ["smith"]
    book.turn(("dispatch", "{}"), ("heat", "{}"))
    book.start(0, child="run-4")
    assert at_work() == ["smith", ""]  # the one below it has not begun
    book.start(1)
    book.result(1)
    book.on("run-4", f"dispatch:{MINER}:run-4").begin("miner", parent="run-3", call=(0, 0))
    assert at_work() == ["miner"]
    book.end(answer="Dug.")
    assert at_work() == ["smith"]  # its answer is there, and it goes on with it
    book.on("run-3", HEAT).result(0)
    book.end(answer="Hot.")
    assert at_work() == []
    book.on("run-2", DIG).decide(0)
    assert at_work() == ["miner"]  # decided: it goes on
    assert texts(book, "call") == [
        "dispatch waits for miner, which is at work",
        "dispatch waits for smith, which is completed",
    ]


def test_who_may_decide_is_told() -> None:
    book = Book()
    book.begin()
    book.turn(("ask", "{}"))
    entry = book.wait(0, kind="question", approvers=("grace",))
    assert isinstance(entry, WaitingEntry)
    (one,) = waits_of(book.record, book.record.runs["run-1"])
    assert (one.kind, one.approvers) == ("question", ("grace",))
    assert one.to_json()["approvers"] == ["grace"]


@law("9.pause")
def test_a_task_that_a_person_must_allow_waits_for_that_person_first() -> None:
    book = Book()
    book.begin("chief")
    book.turn(("dispatch", "{}"))
    call_id = book.wait(0).call_id
    left(book, children=False)
    book.decide(0)
    book.resume()
    book.start(0, child="run-2")
    left(book, children=True)
    book.on("run-2", DIG).begin("miner", parent="run-1", call=(0, 0))
    assert texts(book, "paused") == [
        f"waits for a person: dispatch ({call_id})",
        "waits for agents at work: miner",
    ]

"""The parts of the conversation (contract 1.2), thread ids and authors (contract 9)."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from counterfoil.core.content import Kept
from counterfoil.core.items import ToolResultPart
from counterfoil.core.outcome import SUCCEEDED, Denied, ErrorCode, Failed, Rejected, ToolFailure
from counterfoil.core.parts import result_part
from counterfoil.core.result import ToolResult, seal
from counterfoil.core.turn import NO_USAGE, AuthorType, Usage, author, moment, sees_thread, thread_kind
from counterfoil.core.words import REJECTION_FALLBACK
from tests.marks import law
from tests.records import NOON, OUTCOMES, Book, a_call, ended

FLAGS = ("rejected", "denied", "failed", "skipped", "cancelled")
KEPT_ID = "0198f000-0000-7000-8000-000000000001"


def part_of(book: Book, index: int = 0) -> ToolResultPart:
    return result_part(book.call(index, 0), book.record.runs[book.run_id])


def part(result: ToolResult | None = None, **more: object) -> ToolResultPart:
    return part_of(a_call(result, **more))


@law("1.2.kind", "source.000.kind")
def test_the_kind_is_tool_result() -> None:
    assert part().to_json()["kind"] == "TOOL_RESULT"


@law("1.2.callId", "source.000.callId")
def test_the_part_names_its_call() -> None:
    assert part().to_json()["callId"] == "c0.0"


@law("1.2.toolName", "source.000.toolName")
def test_the_tool_stands_as_the_model_named_it() -> None:
    book = Book()
    book.begin()
    book.turn(("No Such-Tool!", "{}"))
    book.result(0, ended(OUTCOMES["failed"]))
    assert part_of(book).to_json()["toolName"] == "No Such-Tool!"


@law("1.2.result")
def test_the_result_is_the_tool_result_by_field() -> None:
    result = ToolResult.text("done").with_details({"payment": 7}).with_narration("Paid").with_terminate()
    assert part(result).to_json()["result"] == {
        "content": [{"type": "text", "text": "done"}],
        "outcome": {"type": "succeeded"},
        "details": {"payment": 7},
        "terminate": True,
        "narration": "Paid",
    }


@pytest.mark.parametrize(
    ("outcome", "flag"),
    [
        pytest.param("rejected", "rejected", marks=law("1.2.rejected", "source.000.rejected")),
        pytest.param("denied", "denied", marks=law("1.2.denied")),
        pytest.param("failed", "failed", marks=law("1.2.failed")),
        pytest.param("skipped", "skipped", marks=law("1.2.skipped")),
        pytest.param("cancelled", "cancelled", marks=law("1.2.cancelled")),
        ("succeeded", None),
    ],
)
def test_at_most_one_flag_is_there_and_an_absent_one_means_false(outcome: str, flag: str | None) -> None:
    settled = part(ended(OUTCOMES[outcome]), started=False)
    assert {name: settled.to_json()[name] for name in FLAGS if name in settled.to_json()} == (
        {flag: True} if flag else {}
    )
    assert [getattr(settled, name) for name in FLAGS] == [name == flag for name in FLAGS]
    assert settled.executed is (outcome == "succeeded")
    assert settled.is_error is (outcome not in ("succeeded", "skipped"))


@law("source.000.denied")
def test_a_denied_call_gives_what_the_model_read_and_did_not_execute() -> None:
    denied = part(ended(Denied("policy", "no-refunds", None), "Not allowed."), started=False)
    assert (denied.to_json()["denied"], denied.output, denied.executed) == (True, "Not allowed.", False)


@law("source.000.failed")
def test_a_failed_call_gives_an_error_object_and_did_not_execute() -> None:
    failed = part(ended(OUTCOMES["failed"], "refund failed with KeyError."))
    assert failed.to_json()["output"] == {
        "error": {"code": 5000, "name": "TOOL_ERROR", "message": "refund failed with KeyError."}
    }
    assert (failed.to_json()["failed"], failed.executed) == (True, False)


@law("1.2.rejectionReason")
@pytest.mark.parametrize("reason", ["too much", "", None])
def test_the_rejection_reason_is_the_persons_words_alone_or_a_fixed_sentence(reason: str | None) -> None:
    rejected = part(ended(Rejected(reason, "grace"), "A person refused."), started=False)
    assert rejected.to_json()["rejectionReason"] == (reason or REJECTION_FALLBACK)


@law("1.2.rejectionReason")
@pytest.mark.parametrize("outcome", ["succeeded", "failed", "denied", "skipped", "cancelled"])
def test_no_other_call_has_a_rejection_reason(outcome: str) -> None:
    other = part(ended(OUTCOMES[outcome]), started=False)
    assert "rejectionReason" not in other.to_json()
    assert other.rejection_reason is None


@law("1.2.errorCode", "source.000.errorCode")
@pytest.mark.parametrize("code", [17, ErrorCode.TIMEOUT, None])
def test_the_error_code_is_an_integer_and_absent_where_the_failure_has_none(code: int | None) -> None:
    fields = part(ended(Failed(ToolFailure(code, "secret")))).to_json()
    assert fields.get("errorCode") == code
    assert type(fields.get("errorCode")) is (int if code is not None else type(None))
    assert ("errorCode" in fields) is (code is not None)
    assert fields["failed"] is True


@law("1.2.errorCode")
@pytest.mark.parametrize("outcome", [name for name in OUTCOMES if name != "failed"])
def test_the_error_code_comes_only_with_failed(outcome: str) -> None:
    assert "errorCode" not in part(ended(OUTCOMES[outcome]), started=False).to_json()


@law("1.2.resultSize")
def test_the_size_is_that_of_the_whole_output() -> None:
    kept = seal((Kept(KEPT_ID, 1_200_000, "head … tail"),), SUCCEEDED)
    assert part(kept, kept_id=KEPT_ID, size=1_200_000).to_json()["resultSize"] == 1_200_000
    assert part(ToolResult.text("déjà")).to_json()["resultSize"] == 6


@law("1.2.toolResultId")
def test_the_result_id_is_there_only_when_the_result_is_kept_apart() -> None:
    kept = seal((Kept(KEPT_ID, 1_200_000, "head … tail"),), SUCCEEDED)
    assert part(kept, kept_id=KEPT_ID).to_json()["toolResultId"] == KEPT_ID
    assert "toolResultId" not in part().to_json()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("startedAt", "2026-10-26T12:00:03.0000000Z", marks=law("1.2.startedAt")),
        pytest.param("durationMs", 12.0, marks=law("1.2.durationMs")),
        pytest.param("attempt", 1, marks=law("1.2.attempt")),
    ],
)
def test_what_tells_of_the_body_is_absent_when_it_never_ran(name: str, expected: object) -> None:
    assert part().to_json()[name] == expected
    assert name not in part(ended(OUTCOMES["rejected"]), started=False).to_json()


@law("1.2.endedRun", "source.000.endedRun")
def test_the_call_that_ended_the_run_is_marked_and_stays_so_over_a_pause() -> None:
    book = Book()
    book.begin()
    book.turn(("close", "{}"), ("refund", "{}"), ("close", "{}"))
    book.start(0)
    book.result(0)
    book.start(2)
    book.result(2)
    book.wait(1)
    book.pause(ended_run=(0, 0))
    paused = [part_of(book, i).to_json().get("endedRun") for i in (0, 2)]
    book.decide(1)
    book.resume()
    book.start(1)
    book.result(1)
    book.end("tool", ended_run=(0, 0))
    after = [part_of(book, i).to_json().get("endedRun") for i in (0, 1, 2)]
    assert (paused, after) == ([True, None], [True, None, None])


@law("1.2.call-part")
def test_a_call_part_has_every_field_in_camel_case() -> None:
    book = Book()
    book.begin()
    book.turn(("refund", '{"cents": 500}'))
    book.wait(0, input={"cents": 500})
    book.decide(0, input=b'{"cents":200}', reason="half")
    from counterfoil.core.parts import call_part

    assert call_part(book.call(0)).to_json() == {
        "kind": "TOOL_CALL",
        "callId": "c0.0",
        "childRunId": None,
        "providerCallId": "p0.0",
        "toolName": "refund",
        "rawInput": '{"cents": 500}',
        "state": "waiting",
        "stepIndex": 0,
        "sequence": 1,
        "input": {"cents": 500},
        "effectiveInput": {"cents": 200},
        "decision": {"verdict": "ask"},
        "approval": {
            "id": "approval-2",
            "decision": "approve",
            "by": "grace",
            "at": "2026-10-26T12:00:03.0000000Z",
            "reason": "half",
        },
    }


# ------------------------------------------------------------------------------- threads and authors

ADA = author("Human", "ada", "acme").id
BOT = author("Agent", "bot", "acme").id


@pytest.mark.parametrize(
    ("thread", "kind"),
    [
        (None, "main"),
        (f"private:{ADA}", "private"),
        (f"dispatch:{ADA}:42", "dispatch"),
        (f"question:{ADA}:call_1.x-y", "question"),
    ],
)
def test_a_thread_id_has_a_kind(thread: str | None, kind: str) -> None:
    assert thread_kind(thread) == kind


@pytest.mark.parametrize(
    "thread",
    ["", "main", "private", "private:", "private:ada", f"private:{ADA}:1", f"dispatch:{ADA}",
     f"dispatch:{ADA}:", f"dispatch:{ADA}:a b", f"question:{ADA}:1\n", f"PRIVATE:{ADA}",
     f"private:{ADA.upper()}", f" private:{ADA}"],
)  # fmt: skip  # a list of texts
def test_a_thread_id_outside_the_grammar_is_an_error(thread: str) -> None:
    with pytest.raises(ValueError, match="expected null, private:<participant>"):
        thread_kind(thread)


def test_a_participant_sees_the_main_thread_and_its_own_never_anothers() -> None:
    assert sees_thread(ADA, None)
    assert sees_thread(ADA, f"private:{ADA}")
    assert sees_thread(ADA, f"dispatch:{ADA}:1")
    assert not sees_thread(ADA, f"private:{BOT}")
    assert not sees_thread(ADA, f"question:{BOT}:1")


def test_an_unreadable_thread_is_an_error_and_is_not_seen_by_mistake() -> None:
    with pytest.raises(ValueError, match="expected null"):
        sees_thread("x", "anything:x")


KINDS: st.SearchStrategy[AuthorType] = st.sampled_from(["Human", "Agent", "System"])


@given(KINDS, st.text(), st.text())
def test_an_author_is_the_same_for_every_reader_and_has_a_uuid(kind: AuthorType, name: str, tenant: str) -> None:
    who = author(kind, name, tenant)
    assert who == author(kind, name, tenant)
    assert str(UUID(who.id)) == who.id


def test_authors_of_other_types_names_and_tenants_have_other_ids() -> None:
    ids = {
        author(kind, name, tenant).id
        for kind in ("Human", "Agent", "System")
        for name in ("ada", "bot")
        for tenant in ("acme", "other")
    }
    assert len(ids) == 12


@given(st.integers(min_value=0, max_value=4_000_000_000_000_000))
def test_a_moment_is_exact_to_the_microsecond(at: int) -> None:
    assert (moment(at) - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() == pytest.approx(at / 1_000_000)
    assert moment(at).microsecond == at % 1_000_000


def test_noon_is_noon() -> None:
    assert moment(NOON) == datetime(2026, 10, 26, 12, tzinfo=UTC)


def test_usage_adds_up() -> None:
    total = Usage(10, 5, 3, 0.5, 2) + Usage(1, 2, 0, 0.25, 1)
    assert (total, total.tokens, total + NO_USAGE) == (Usage(11, 7, 3, 0.75, 3), 18, total)

"""Results that are too large to be read whole: kept apart, previewed, and read on with read_result (contract 6)."""

import asyncio
import re
from typing import Any

import pytest

from counterfoil import Agent, Hooks, Image, Json, Limits, Policy, Rule, Run, Runtime, Succeeded, Text, ToolResult, tool
from counterfoil.core.limits import KEEP_APART_BYTES, READ_RESULT_CHARS
from counterfoil.testing import ScriptedModel, call, say
from tests.boundary import SECONDS, Ran, go, reads
from tests.marks import case, law

LIMITS = Limits(keep_apart_bytes=1000)


def gives(value: Any, *turns: Any, limits: Limits = LIMITS, **settings: Any) -> Ran:
    """A tool gives this under the id ``big``; then these turns."""

    def large() -> Any:
        return value

    made = tool(**settings)(large) if settings else tool(large)
    return go([made], call("large", id="big"), *turns, limits=limits)


def read_on(value: Any, /, limits: Limits = LIMITS, **arguments: Any) -> str:
    """What read_result gives of this value."""
    seen = gives(value, call("read_result", call_id="big", **arguments), limits=limits)
    assert seen.results[1].result.outcome == Succeeded()
    return seen.reads[1]


# ---------------------------------------------------------------------------------------------- kept apart


@law("6.kept-apart", "1.2.toolResultId", "1.2.output", "1.2.resultSize")
@case("R154")
def test_a_text_over_the_limit_is_stored_once_apart_under_an_id_and_the_run_keeps_id_and_size():
    text = "".join(f"line {n}\n" for n in range(1000))
    found: list[str] = []

    async def read(run: Run) -> None:
        sequence = run.results[0].sequence
        whole = await run._runtime.tool_result(run.id, sequence)
        part = await run._runtime.tool_result(run.id, sequence, offset=7, limit=6)
        found.extend([whole.text, part.text])
        stored = [e.content() async for e in _entries(run)]
        assert sum(text.encode() in (c or b"") for c in stored) == 0

    seen = go([tool(name="large")(lambda: text)], call("large"), limits=LIMITS, then=read)
    part = seen.part
    assert part.tool_result_id is not None
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", part.tool_result_id)
    assert (part.result_size, part.output) == (len(text), None)
    assert found == [text, "line 1"]


async def _entries(run: Run) -> Any:
    for entry in await run._runtime.store.entries("default", run.interaction_id):
        yield entry


@law("6.kept-apart")
@pytest.mark.parametrize(("size", "apart"), [(999, False), (1000, False), (1001, True)])
def test_the_limit_counts_bytes_and_what_just_fits_stays(size, apart):
    seen = gives("é" * (size // 2) + "x" * (size % 2))
    assert seen.part.result_size == size
    assert (seen.part.tool_result_id is not None) is apart


@law("6.kept-apart")
def test_unless_set_the_limit_is_32_kib():
    assert KEEP_APART_BYTES == 32 * 1024
    assert gives("x" * KEEP_APART_BYTES, limits=Limits()).part.tool_result_id is None
    assert gives("x" * (KEEP_APART_BYTES + 1), limits=Limits()).part.tool_result_id is not None


@law("6.preview")
@case("R154", "R157")
@pytest.mark.parametrize("shift", range(8))
def test_the_model_reads_head_and_tail_on_whole_characters_and_what_is_missing_and_how_to_read_on(shift):
    text = "x" * shift + "👩‍🚀日é" * 300 + "END"
    seen = gives(text)
    found = re.fullmatch(r"(.*)\n\n\[(\d+) of (\d+) bytes are left out here\. (.*)\]\n\n(.*)", seen.read, re.DOTALL)
    assert found is not None
    head, missing, total, how, tail = found.groups()
    assert text.startswith(head)
    assert text.endswith(tail)
    assert "\ufffd" not in seen.read
    assert int(total) == len(text.encode()) == seen.part.result_size
    assert int(missing) == len(text.encode()) - len(head.encode()) - len(tail.encode())
    assert 'read_result(call_id="big"' in how
    assert len(head.encode()) <= 250 >= len(tail.encode())
    assert tail.endswith("END")


@law("6.preview")
def test_the_left_out_line_names_the_call_by_the_id_that_reads_on():
    seen = gives("x" * 5000, lambda request: call("read_result", call_id=_named(request), limit=3))
    assert seen.reads[1].endswith("\nxxx")


def _named(request: Any) -> str:
    found = re.search(r'read_result\(call_id="(.*?)"', reads(request)[-1])
    assert found is not None
    return found[1]


@law("6.kept-apart")
@pytest.mark.parametrize("value", [{"rows": list(range(1000))}, ["é"] * 1000])
def test_a_json_value_is_kept_as_its_json_text(value):
    seen = gives(value, call("read_result", call_id="big", limit=20))
    assert seen.results[0].output is None
    assert seen.reads[1].endswith("\n" + Json(value).text[:20])


@law("6.media", "6.kept-apart")
def test_media_beside_a_large_text_reach_the_model_whole_and_in_place_of_the_text_stands_the_preview():
    picture = Image(b"\x89PNG" * 5000)
    seen = gives(ToolResult.blocks(Text("x" * 5000), picture))
    kept, image = seen.part.result.content
    assert kept.type == "kept"
    assert image == picture
    assert seen.part.result_size == 5000 + 20000
    alone = gives(ToolResult.blocks(picture))
    assert (alone.part.tool_result_id, alone.part.result.content) == (None, (picture,))


@law("6.kept-apart")
def test_a_large_failure_is_kept_apart_too_and_stays_a_failure():
    seen = gives(ToolResult.error("x" * 5000), call("read_result", call_id="big", limit=2))
    assert seen.results[0].failed
    assert seen.results[0].tool_result_id is not None
    assert seen.reads[1].endswith("\nxx")
    assert seen.report.model_text == seen.reads[0]


@law("6.fail")
def test_with_on_oversize_fail_nothing_is_kept_of_what_is_too_large():
    seen = gives("x" * 5000, max_output_bytes=2000, on_oversize="fail")
    assert (seen.failure.code, seen.part.tool_result_id) == (4130, None)
    assert "xx" not in seen.read


@law("6.kept-apart")
def test_with_on_oversize_keep_a_result_over_max_output_bytes_is_a_success_that_is_kept_apart():
    seen = gives("x" * 5000, max_output_bytes=2000)
    assert seen.outcome == Succeeded()
    assert seen.part.tool_result_id is not None


# ---------------------------------------------------------------------------------------------- read_result


@law("6.read_result")
def test_it_is_offered_once_something_is_kept_apart_and_not_before():
    seen = gives("x" * 5000)
    first, second = ([t["name"] for t in r.tools] for r in seen.model.requests)
    assert (first, second) == (["large"], ["large", "read_result"])
    small = gives("x", call("read_result", call_id="big"))
    assert small.results[1].error_code in {4001, 4002}


@law("6.read_result")
@case("R155")
@pytest.mark.parametrize(
    ("arguments", "place", "text"),
    [
        ({"limit": 5}, "[Characters 0 to 5 of 2000. To read on, use offset=5.]", "日é日é日"),
        ({"offset": 1, "limit": 2}, "[Characters 1 to 3 of 2000. To read on, use offset=3.]", "é日"),
        ({"offset": 1998}, "[Characters 1998 to 2000 of 2000.]", "日é"),
        ({"offset": 5000}, "[Characters 5000 to 5000 of 2000.]", ""),
    ],
)
def test_offset_and_limit_count_characters(arguments, place, text):
    assert read_on("日é" * 1000, **arguments) == f"{place}\n{text}"


@law("6.read_result")
def test_one_reading_gives_no_more_than_its_own_limit_and_all_slices_together_are_the_whole():
    text = "".join(f"{n:06d}\n" for n in range(8000))
    slices: list[str] = []

    def turn(offset: int) -> Any:
        return call("read_result", call_id="big", offset=offset, limit=10**9)

    offsets = range(0, len(text), READ_RESULT_CHARS)
    seen = gives(text, *(turn(o) for o in offsets))
    slices = [r.partition("\n")[2] for r in seen.reads[1:]]
    assert "".join(slices) == text
    assert max(map(len, slices)) == READ_RESULT_CHARS


@law("6.read_result")
@pytest.mark.parametrize("arguments", [{"offset": -1}, {"limit": 0}, {"pattern": 7}, {"page": 2}, {}])
def test_arguments_that_make_no_sense_are_refused_by_the_schema(arguments):
    given = arguments if not arguments else {"call_id": "big", **arguments}
    seen = gives("x" * 5000, call("read_result", given))
    assert seen.results[1].error_code == 4003


@law("6.read_result")
def test_a_pattern_gives_the_lines_that_match_with_the_character_offset_of_each():
    text = "".join(f"é line {n}\n" for n in range(300))
    found = read_on(text, pattern=r"line 2\d5$")
    lines = found.splitlines()[1:]
    assert len(lines) == 10
    for row in lines:
        offset, _, line = row.partition(": ")
        assert text[int(offset) :].startswith(line + "\n")
    assert read_on(text, pattern="nowhere") == "[No line matches.]"
    assert read_on(text, pattern="line 299", offset=len(text) - 12).splitlines()[1:] == [
        f"{len(text) - 11}: é line 299"
    ]


@law("6.read_result")
def test_more_lines_than_fit_say_where_to_go_on():
    text = "".join(f"{n:08d}\n" for n in range(5000))
    found = read_on(text, pattern="0")
    assert found.endswith("[More lines match; go on from the last offset.]")
    assert len(found) < 2 * READ_RESULT_CHARS


@law("6.read_result")
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*b", "(.*)*x", "^(([a-z])+.)+[A-Z]([a-z])+$"])
def test_a_pattern_that_would_take_for_ever_elsewhere_is_linear_here(pattern):
    text = ("a" * 50_000 + "!\n") * 4
    read_on(text, pattern=pattern)


@law("6.read_result")
@pytest.mark.parametrize("pattern", [r"(?=a)", r"(a)\1", "(", "[", "a{1000000000}"])
def test_a_pattern_that_cannot_be_used_is_an_error_that_says_so(pattern):
    seen = gives("x" * 5000, call("read_result", call_id="big", pattern=pattern))
    assert seen.results[1].failed
    assert "cannot be used" in seen.reads[1]


@law("6.read_result", "6.growth")
def test_matches_are_found_across_the_pieces_in_which_a_long_text_is_read():
    unit = "x" * 999 + "\n"
    found = read_on(unit * 700 + "a needle\n" + unit * 700, pattern="needle")
    assert found.splitlines()[1:] == ["700000: a needle"]


@law("6.read_result", "6.growth")
@pytest.mark.parametrize("at", [0, 1_990, 3_999, 262_140, 262_144, 700_000, 1_399_994])
def test_of_a_line_without_end_the_part_with_the_match_is_shown_once(at):
    """Of JSON on one line, say."""
    line = "x" * 1_400_000
    found = read_on(line[:at] + "needle" + line[at + 6 :], pattern="needle")
    (row,) = found.splitlines()[1:]
    offset, _, part = row.partition(": ")
    assert int(offset) + part.index("needle") == at
    assert len(part) <= 4000


@law("6.read_result")
def test_each_match_in_a_long_line_is_found_and_lines_after_it_too():
    text = "-" * 9_000 + "needle" + "-" * 9_000 + "needle" + "-" * 9_000 + "\nneedle\n"
    found = read_on(text, pattern="needle").splitlines()[1:]
    places = [int(r.partition(": ")[0]) + r.partition(": ")[2].index("needle") for r in found]
    assert places == [9_000, 18_006, 27_013]


@law("6.read_result")
@case("R155")
@pytest.mark.parametrize("call_id", ["other", "", "big ", "\x00", "x" * 10_000])
def test_an_unknown_id_is_an_error_that_names_what_to_do(call_id):
    seen = gives("x" * 5000, call("read_result", call_id=call_id))
    assert seen.results[1].failed
    assert "There is no result" in seen.reads[1]
    assert len(seen.reads[1]) < 1000


@law("6.read_result")
def test_a_result_that_was_not_kept_apart_can_be_read_too():
    @tool
    def small() -> str:
        return "small and whole"

    @tool
    def large() -> str:
        return "x" * 5000

    seen = go([small, large], [call("small", id="s"), call("large", id="l")],
              call("read_result", call_id="s", offset=6, limit=3), limits=LIMITS)  # fmt: skip
    assert seen.reads[2].endswith("\nand")


@law("6.read_result")
def test_what_it_gives_is_never_kept_apart_itself_however_small_the_limit():
    seen = gives("日" * 5000, call("read_result", call_id="big"), limits=Limits(keep_apart_bytes=100))
    assert seen.results[1].tool_result_id is None
    assert seen.reads[1].endswith("日" * 5000)


@law("6.read_result", "5.vote")
def test_it_has_no_vote():
    @tool
    def large() -> ToolResult:
        return ToolResult.text("x" * 5000)

    @tool
    def ends() -> ToolResult:
        return ToolResult.terminal("the end")

    turn = [call("ends", id="e"), call("read_result", call_id="big", limit=1)]
    seen = go([large, ends], call("large", id="big"), turn, limits=LIMITS)
    assert (seen.run.ended_by, seen.run.answer) == ("vote", "the end")


@law("6.read_result")
def test_no_policy_and_no_approval_stands_before_what_a_participant_was_given_anyhow():
    policy = Policy([Rule("large", "allow", tool="large")], default="deny")

    @tool
    def large() -> str:
        return "x" * 5000

    seen = go(
        [large], call("large", id="big"), call("read_result", call_id="big", limit=1), policy=policy, limits=LIMITS
    )
    assert seen.results[1].result.outcome == Succeeded()


@law("6.read_result")
def test_after_guards_see_what_it_gives_as_any_other_result():
    seen_by: list[str] = []
    hooks = [Hooks(after_call=lambda after: seen_by.append(after.tool.name))]

    @tool
    def large() -> str:
        return "x" * 5000

    go([large], call("large", id="big"), call("read_result", call_id="big", limit=1), hooks=hooks, limits=LIMITS)
    assert seen_by == ["large", "read_result"]


@law("6.read_result-sees", "10.does-not-exist")
def test_it_shows_earlier_runs_of_the_interaction_and_nothing_of_another():
    @tool
    def large() -> str:
        return "x" * 5000

    def agent(*turns: Any) -> Agent:
        return Agent("desk", model_of(*turns), tools=[large], limits=LIMITS)

    models: list[ScriptedModel] = []

    def model_of(*turns: Any) -> ScriptedModel:
        models.append(ScriptedModel([*turns, say("done")], across_runs=True))
        return models[-1]

    turns = (
        call("large", id="mine"), say("first"), call("read_result", call_id="mine", limit=2),
        call("read_result", call_id="theirs", limit=2),
    )  # fmt: skip

    async def main() -> None:
        async with Runtime(agents=[agent(*turns)]) as runtime:
            first = await runtime.start("desk", "Go.")
            await first.wait(SECONDS)
            other = await runtime.start("desk", "Go.")
            await other.wait(SECONDS)
            second = await runtime.start("desk", "Go on.", interaction=first.interaction_id)
            await second.wait(SECONDS)
            mine, theirs = second.results
            assert mine.result.model_output.endswith("\nxx")
            assert "There is no result" in theirs.result.model_output

    asyncio.run(main())


@law("6.read_result-sees")
def test_it_shows_results_of_its_own_threads_and_the_main_one_and_of_no_other():
    from counterfoil.builtin import read_result_tool
    from counterfoil.core.call import Caller
    from counterfoil.core.entries import RunEntry
    from counterfoil.core.record import Record
    from counterfoil.core.turn import author

    threads = [None, *(f"private:{author('Agent', name, 'default').id}" for name in ("a", "b"))]
    found: dict[str | None, list[bool]] = {}

    async def main() -> None:
        seen = await _one_kept()
        caller = Caller()
        store, entries = seen._runtime.store, await seen._runtime.store.entries("default", seen.interaction_id)
        for written in threads:
            for entry in entries:
                entry.thread_id = written
            rows = found.setdefault(written, [])
            for name in ("chief", "a", "b"):
                thread, after = f"dispatch:{author('Agent', name, 'default').id}:r", Record(entries).tip + 1
                head = RunEntry(
                    run_id="r", thread_id=thread, at=0, entry=after, agent=name, caller=caller, limits=LIMITS
                )
                made = read_result_tool(Record([*entries, head]), store, "default", "r")
                result = await made.fn(call_id="big")
                rows.append(result.executed)
                # As its model sees it: what came while it worked stands on no thread of its own.
                head.entry = 1
                made = read_result_tool(Record([head, *entries]), store, "default", "r")
                assert not (await made.fn(call_id="big")).executed

    asyncio.run(main())
    private = threads[1:]
    assert found == {None: [True, True, True], private[0]: [False, True, False], private[1]: [False, False, True]}


async def _one_kept() -> Run:
    @tool
    def large() -> str:
        return "x" * 5000

    agent = Agent("desk", ScriptedModel([call("large", id="big"), say("done")]), tools=[large], limits=LIMITS)
    return await agent.run("Go.")


@law("6.growth")
def test_a_large_result_stands_once_in_the_store_however_many_turns_follow():
    text = "".join(f"{n}\n" for n in range(20_000))
    sizes: list[int] = []

    async def measure(run: Run) -> None:
        entries = await run._runtime.store.entries("default", run.interaction_id)
        sizes.append(sum(len(e.content() or b"") for e in entries))

    def large() -> str:
        return text

    @tool
    def step() -> str:
        return "ok"

    go([large, step], call("large"), *(call("step") for _ in range(30)), limits=LIMITS, then=measure)
    assert len(text) > 100_000
    assert sizes[0] < 20_000

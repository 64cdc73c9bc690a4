"""Scripted and recorded models, frozen effects."""

import asyncio
import json
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest

from counterfoil.core.call_entries import ResultEntry
from counterfoil.core.entries import CallRecord, MessageEntry, TurnEntry
from counterfoil.core.errors import DefinitionError, ModelError
from counterfoil.core.result import ToolResult
from counterfoil.core.turn import Usage
from counterfoil.model import ModelCall, ModelEvent, ModelRequest, ModelTurn, Offer, TextDelta
from counterfoil.testing import FrozenEffects, RecordedModel, ScriptedModel, call, say
from counterfoil.testing.models import SeenRequest, open_recorded, open_scripted
from tests.promises import shared

pytest_plugins = ["pytester"]


def request(turns: int = 0, items: list[Any] | None = None, **more: Any) -> ModelRequest:
    held = items if items is not None else []
    return ModelRequest("Be brief.", held, len(held), more.pop("tools", ()), turns=turns, **more)


def ask(model: ScriptedModel, asked: ModelRequest) -> list[ModelEvent]:
    async def main() -> list[ModelEvent]:
        return [event async for event in model.respond(asked)]

    return asyncio.run(main())


def turn(model: ScriptedModel, turns: int = 0) -> ModelTurn:
    last = ask(model, request(turns))[-1]
    assert isinstance(last, ModelTurn)
    return last


# ------------------------------------------------------------------------------------------- scripted


def test_a_turn_is_a_text_a_call_or_a_list_of_both() -> None:
    model = ScriptedModel(
        [
            say("Looking."),
            call("look", order_id="W100", id="c1"),
            [say("Both."), call("look", a=1, id="c"), call("look", a=1, id="c")],
        ]
    )
    assert turn(model, 0) == ModelTurn("Looking.", model="scripted")
    one = ModelCall("c1", "look", '{"order_id":"W100"}')
    assert turn(model, 1) == ModelTurn(calls=(one,), stop="calls", model="scripted")
    both = turn(model, 2)
    assert both.text == "Both."
    assert [c.id for c in both.calls] == ["c", "c"]


def test_arguments_are_verbatim_when_raw_and_may_have_the_names_that_call_takes() -> None:
    assert call("look", raw='{"broken', id="c1") == ModelCall("c1", "look", '{"broken')
    assert call("look", raw=None) == ModelCall(None, "look", None)
    assert call("look", {"id": 7, "raw": 8}, tool="x") == ModelCall(None, "look", '{"id":7,"raw":8,"tool":"x"}')
    assert call("look") == ModelCall(None, "look", "{}")
    with pytest.raises(DefinitionError, match="one of them"):
        call("look", raw="{}", a=1)


def test_a_text_is_streamed_in_the_pieces_that_were_asked_for() -> None:
    model = ScriptedModel([say("abcde", deltas=2), say("whole"), say("none", deltas=0), say("")])
    assert ask(model, request(0))[:-1] == [TextDelta("abc"), TextDelta("de")]
    assert ask(model, request(1))[:-1] == [TextDelta("whole")]
    assert ask(model, request(2))[:-1] == []
    assert ask(model, request(3)) == [ModelTurn(model="scripted")]


def test_stop_and_usage_are_as_said() -> None:
    made = turn(ScriptedModel([[say("cut", stop="length", usage=Usage(3, 4)), call("look")]]))
    assert (made.stop, made.usage) == ("length", Usage(3, 4))


def test_a_turn_can_be_a_function_of_the_request_sync_or_async() -> None:
    async def later(seen: SeenRequest) -> Any:
        await asyncio.sleep(0)
        return [call("look", n=seen.turns)]

    model = ScriptedModel([lambda seen: say(str(seen.messages[0]["content"])), later])
    assert turn(model, 0).text == "Be brief."
    assert turn(model, 1).calls[0].arguments == '{"n":1}'


def test_the_turn_is_chosen_by_the_turns_in_the_request_so_another_process_goes_on() -> None:
    script = [say("one"), say("two"), say("three")]
    assert turn(ScriptedModel(script), 2).text == "three"


def test_runs_of_one_interaction_can_share_a_script() -> None:
    items = [TurnEntry(run_id="r1", at=0, step=0, text="one", calls=(), stop="end")]
    first, second = ScriptedModel([say("one"), say("two")]), None
    second = ScriptedModel([say("one"), say("two")], across_runs=True)
    assert ask(first, request(0, items))[0] == TextDelta("one")
    assert ask(second, request(0, items))[0] == TextDelta("two")


def test_asked_beyond_the_script_it_says_which_turn_and_how_many_there_are() -> None:
    model = ScriptedModel([say("one"), say("two")])
    with pytest.raises(ModelError, match="turn 4 was asked of a script that has 2") as caught:
        turn(model, 3)
    assert not caught.value.retryable
    assert len(model.requests) == 1


def test_it_names_the_turns_that_were_not_played() -> None:
    model = ScriptedModel([say("one"), [say("x"), call("look")], lambda _: say("three")])
    turn(model, 0)
    named = r"2 of 3 .* turn 2: say\('x'\), call\('look'\); turn 3: the function"
    with pytest.raises(AssertionError, match=named):
        model.assert_complete()
    turn(model, 1)
    turn(model, 2)
    model.assert_complete()


@pytest.mark.parametrize("bad", ["text", [], [say("x"), "y"], None, 7, [call], {"a": 1}])
def test_what_is_no_turn_is_refused_when_it_is_written(bad: Any) -> None:
    with pytest.raises(DefinitionError, match="turn 1"):
        ScriptedModel([bad])
    with pytest.raises(DefinitionError, match="turn 1"):
        turn(ScriptedModel([lambda _: bad]))


def test_a_script_that_is_no_list_and_a_text_that_is_no_text_are_refused() -> None:
    with pytest.raises(DefinitionError, match="list"):
        ScriptedModel(say("x"))  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match="str"):
        say(7)  # type: ignore[arg-type]


def history() -> list[Any]:
    return [
        MessageEntry(run_id="r", at=0, text="Hello"),
        TurnEntry(
            run_id="r",
            at=0,
            step=0,
            text="",
            calls=(CallRecord("c1", "p1", "look", '{"a":1}'),),
            stop="calls",
        ),
        ResultEntry(
            run_id="r",
            at=0,
            step=0,
            index=0,
            call_id="c1",
            tool_name="look",
            result=ToolResult.error("No."),
            size=3,
        ),
    ]


def test_requests_are_kept_as_the_model_read_them_although_the_history_grows() -> None:
    items = history()
    offer = Offer("look", "Look.", {"type": "object"})
    model = ScriptedModel([say("one"), say("two")])
    ask(model, request(0, items, tools=(offer,)))
    items.append(MessageEntry(run_id="r", at=0, text="later"))
    ask(model, request(1, items))
    first, second = model.requests
    assert [m["role"] for m in first.messages] == ["system", "user", "assistant", "tool"]
    assert first.messages[2]["tool_calls"] == [
        {"id": "c1", "name": "look", "arguments": {"a": 1}, "arguments_raw": '{"a":1}'}
    ]
    assert first.messages[3]["error"] == "No."
    assert first.tools == [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}]
    assert second.messages[-1]["content"] == "later"
    assert second.tools == []


def test_a_result_that_was_left_out_is_shown_as_the_pointer_that_the_model_reads() -> None:
    model = ScriptedModel([say("one")])
    ask(model, request(0, history(), elided=frozenset({2})))
    content = model.requests[0].messages[3]["content"]
    assert "3 bytes" in str(content)
    assert 'read_result(call_id="c1")' in str(content)


# ------------------------------------------------------------------------------------------- recorded

RECORDING: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": None, "name": "look", "arguments": {"a": 1}, "arguments_raw": '{"a":  1'},
            {"id": "x", "name": "look", "arguments": {"b": 2}},
        ],
    },
    {"role": "tool", "content": "fine", "tool_call_id": None, "tool_name": "look", "error": None},
    {"role": "assistant", "content": "Done."},
]


def test_a_recording_plays_its_assistant_turns() -> None:
    model = RecordedModel(RECORDING)
    first = turn(model, 0)
    assert first.calls == (ModelCall(None, "look", '{"a":  1'), ModelCall("x", "look", '{"b":2}'))
    assert first.stop == "calls"
    assert (turn(model, 1).text, turn(model, 1).stop) == ("Done.", "end")
    model.assert_complete()


def test_recordings_of_real_models_can_be_played() -> None:
    folder = shared()
    if folder is None:
        pytest.skip("the recorded runs are not here: set COUNTERFOIL_SHARED")
    played = 0
    for file in sorted((folder / "data" / "trajectories").glob("*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            messages = json.loads(line)["messages"]
            model = RecordedModel(messages)
            for n in range(sum(m["role"] == "assistant" for m in messages)):
                turn(model, n)
                played += 1
            model.assert_complete()
    assert played > 1000


# ---------------------------------------------------------------------------------------------- files


def written(path: Path, value: str) -> str:
    path.write_text(value, encoding="utf-8")
    return str(path)


def test_a_script_from_a_file_in_json_or_json_lines(tmp_path: Path) -> None:
    turns = [
        {"tool_calls": [{"name": "look", "arguments_raw": "{"}]},
        {"content": "é", "stop": "length"},
        "Done.",
    ]
    whole = written(tmp_path / "a.json", json.dumps(turns, indent=1))
    lines = written(tmp_path / "a.jsonl", "\n".join(json.dumps(t) for t in turns) + "\n\n")
    for model in (open_scripted(f"scripted:{whole}"), open_scripted(lines)):
        assert turn(model, 0).calls == (ModelCall(None, "look", "{"),)
        assert (turn(model, 1).text, turn(model, 1).stop) == ("é", "length")
        assert turn(model, 2).text == "Done."


def test_a_recording_from_a_file_of_messages_of_one_run_or_of_many(tmp_path: Path) -> None:
    messages = written(tmp_path / "m.json", json.dumps(RECORDING))
    lines = written(tmp_path / "m.jsonl", "\n".join(map(json.dumps, RECORDING)))
    one = written(tmp_path / "one.json", json.dumps({"id": "r", "messages": RECORDING}))
    runs = [{"id": "a/1", "messages": RECORDING[:2]}, {"id": "a/2", "messages": RECORDING}]
    many = written(tmp_path / "many.jsonl", "\n".join(map(json.dumps, runs)))
    for spec in (f"recorded:{messages}", lines, one, f"recorded:{many}#1", f"{many}#a/2"):
        assert turn(open_recorded(spec), 1).text == "Done."
    with pytest.raises(DefinitionError, match="holds 2 runs; choose one"):
        open_recorded(many)
    with pytest.raises(DefinitionError, match="no run 'b'"):
        open_recorded(f"{many}#b")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1", "is no JSON"),
        ('"fine"\n{', "line 2 is no JSON"),
        ("[7]", "item 1 is int"),
        ('[{"content": 7}]', "item 1: content is int"),
        ('["Fine.", {"text": "Fine."}]', "item 2 has none of content, tool_calls, stop, usage; got text"),
        ('[{"stop": "never"}]', "item 1: stop is 'never'; expected one of end, calls"),
        ('[{"usage": {"tokens": 1}}]', "item 1: usage does not fit"),
        ('[{"tool_calls": {}}, {"tool_calls": 1}]', "item 2: tool_calls is int"),
        ('[{"tool_calls": [{"id": "x"}]}]', "item 1, call 1"),
        ('[{"tool_calls": [{"id": 7, "name": "x"}]}]', "call 1: id is 7"),
        ('[{"tool_calls": [{"name": "x", "arguments_raw": {}}]}]', "call 1: arguments_raw is dict"),
    ],
)
def test_a_script_that_cannot_be_read_names_the_place(tmp_path: Path, content: str, said: str) -> None:
    path = written(tmp_path / "bad.jsonl", content)
    with pytest.raises(DefinitionError) as caught:
        open_scripted(path)
    assert said in str(caught.value)


def test_a_file_that_is_missing_or_has_nothing_to_play_is_said(tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match="cannot read"):
        open_scripted(f"scripted:{tmp_path / 'none.json'}")
    with pytest.raises(DefinitionError, match="nothing to play"):
        open_recorded(written(tmp_path / "u.json", json.dumps(RECORDING[:1])))
    with pytest.raises(DefinitionError, match="expected a message"):
        open_recorded(written(tmp_path / "n.json", "[1]"))


# -------------------------------------------------------------------------------------------- effects


def test_frozen_time_moves_by_a_tick_for_each_reading_and_when_told() -> None:
    effects = FrozenEffects(start=1_000_000, tick=10)
    assert [effects.now(), effects.now()] == [1_000_000, 1_000_010]
    effects.advance(2.5)
    assert effects.now() == 3_500_020
    effects.set(5)
    assert effects.now() == 5


def test_frozen_sleep_moves_the_clock_and_waits_for_nothing() -> None:
    effects = FrozenEffects(tick=0)
    before, clock = effects.now(), effects.clock()
    asyncio.run(effects.sleep(86_400))
    assert effects.now() - before == 86_400_000_000
    assert effects.clock() - clock == pytest.approx(86_400)
    assert effects.slept == [86_400]


def test_frozen_ids_are_uuids_of_version_7_in_order_and_the_same_in_each_run() -> None:
    one, two, other = FrozenEffects(), FrozenEffects(), FrozenEffects(seed=1)
    ids = [one.new_id() for _ in range(2000)]
    assert ids == [two.new_id() for _ in range(2000)]
    assert ids == sorted(set(ids))
    assert {uuid.UUID(i).version for i in ids} == {7}
    assert {uuid.UUID(i).variant for i in ids} == {uuid.RFC_4122}
    assert not {other.new_id() for _ in range(2000)} & set(ids)


def test_frozen_effects_have_the_probe_of_real_ones() -> None:
    assert FrozenEffects().probe is None


# --------------------------------------------------------------------------------------------- package


def test_importing_the_package_imports_no_suite_and_no_pytest() -> None:
    program = "import sys; from counterfoil.testing import *; ScriptedModel; print('pytest' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_an_unknown_name_is_an_attribute_error() -> None:
    import counterfoil.testing

    assert not hasattr(counterfoil.testing, "nothing")
    assert "StoreSuite" in dir(counterfoil.testing)


def test_the_plugin_gives_scripts_that_must_be_played(pytester: pytest.Pytester) -> None:
    pytester.makeconftest('pytest_plugins = ["counterfoil.testing.plugin"]')
    pytester.makepyfile("""
        from counterfoil.testing import say

        def test_unplayed(scripted):
            scripted(say("never"))

        def test_time(frozen_effects):
            assert frozen_effects.now() < frozen_effects.now()
    """)
    pytester.runpytest_subprocess("-p", "no:cacheprovider").assert_outcomes(passed=2, errors=1)

"""The model suite: what a request holds of a record. Each one is taken by the wire's strict server."""

# ruff: noqa: S101, PLR2004  # tests, as those in tests/

from __future__ import annotations

from typing import Any

import pytest

from counterfoil.core.call import Offer
from counterfoil.core.content import Audio, Block, File, Image, Link, Text, block_text
from counterfoil.core.jsontext import JsonValue
from counterfoil.core.outcome import Rejected
from counterfoil.core.result import ToolResult, seal
from counterfoil.model import Item
from counterfoil.testing.fake_server import Play, Told
from counterfoil.testing.model_bench import (
    HOSTILE,
    LOOK,
    PNG,
    WAV,
    At,
    ModelBench,
    Serve,
    awaited,
    made,
    request,
    result,
    said,
    turn,
)

CANARY = "canary-7f3a9e"


def of(at: At, *kinds: str) -> list[Told]:
    """What a model read of these kinds."""
    return [told for told in at.told if told.kind in kinds]


class RequestTests(ModelBench):
    """Messages, pairing, ids, media, tools, and what must not leave."""

    @awaited
    async def test_instructions_and_messages_stand_in_their_order(self, serve: Serve) -> None:
        async with serve(Play("fine")) as at:
            await at.turn(request(said("Hello"), turn(words="Hi."), said("The form is wrong.", "System"), said("Go")))
            texts = [(told.kind, told.text) for told in at.told if told.kind != "system"]
            assert at.told[0] == Told("system", "Be brief.")
            assert "The form is wrong." in str(at.last.body)
        assert [text for kind, text in texts if kind == "assistant"] == ["Hi."]
        assert ("user", "Hello") in texts
        assert texts[-1] == ("user", "Go")

    @awaited
    async def test_every_call_has_its_result_right_after_its_turn(self, serve: Serve) -> None:
        rejected = seal((Text("A person refused this call of look. Nothing ran."),), Rejected("no", "grace"))
        async with serve(Play("fine")) as at:
            await at.turn(
                request(
                    said("Go"),
                    turn(made("p1", "p1"), made("p2", "p2", raw='{"a": 2}'), made("p3", "p3"), words="Looking."),
                    result("p1", ToolResult.text("one")),
                    result("p2", ToolResult.error("it broke"), index=1),
                    result("p3", rejected, index=2),
                    turn(made("p4", "p4"), step=1),
                    result("p4", ToolResult.json({"n": 4}), step=1),
                )
            )
            assert [(told.kind, told.id) for told in of(at, "call", "result")] == [
                *(("call", name) for name in ("p1", "p2", "p3")),
                *(("result", name) for name in ("p1", "p2", "p3")),
                ("call", "p4"),
                ("result", "p4"),
            ]
            texts = [told.text for told in of(at, "result")]
        assert texts == ["one", "it broke", "A person refused this call of look. Nothing ran.", '{"n":4}']

    @pytest.mark.parametrize("elided", [(), (2, 3)])
    def test_a_failed_call_is_told_from_one_that_succeeded(self, serve: Serve, elided: tuple[int, ...]) -> None:
        @awaited
        async def main() -> None:
            ends = result("p1", ToolResult.text("one")), result("p2", ToolResult.error("it broke"), index=1)
            items = said("Go"), turn(made("p1", "p1"), made("p2", "p2")), *ends
            async with serve(Play("fine")) as at:
                await at.turn(request(*items, elided=frozenset(elided)))
                told = of(at, "result")
            assert [one.failed for one in told] in ([False, True], [None, None]), "None: the wire's text alone tells"
            assert elided or [one.text for one in told] == ["one", "it broke"]

        main()

    @awaited
    async def test_ids_are_unique_in_a_request_and_equal_in_call_and_result(self, serve: Serve) -> None:
        long = "x" * 300
        async with serve(Play("fine")) as at:
            await at.turn(
                request(
                    said("Go"),
                    turn(made("same", "same"), made("ours", "same"), made("none", None), made("long", long)),
                    *(
                        result(name, ToolResult.text(f"of {name}"), index=n)
                        for n, name in enumerate(("same", "ours", "none", "long"))
                    ),
                    turn(made("same", "same"), made("odd", " \t"), made("bad", "ü €/\n"), run="r2"),
                    *(
                        result(name, ToolResult.text(f"of r2 {name}"), index=n, run="r2")
                        for n, name in enumerate(("same", "odd", "bad"))
                    ),
                )
            )
            calls = [told.id for told in of(at, "call")]
            answers = {told.id: told.text for told in of(at, "result")}
        assert len(set(calls)) == 7
        assert [answers[name] for name in calls] == [
            *("of same", "of ours", "of none", "of long"),
            *("of r2 same", "of r2 odd", "of r2 bad"),
        ]

    @awaited
    async def test_what_a_model_made_up_goes_back_in_a_legal_form(self, serve: Serve) -> None:
        odd = [("a b.c!", '{"a": '), ("ü" * 80, "null"), ("", ""), ("look", '{"a": NaN, "b": "\\ud800"}')]
        async with serve(Play("fine")) as at:
            await at.turn(
                request(
                    said("Go"),
                    turn(*(made(f"c{n}", f"c{n}", name, raw) for n, (name, raw) in enumerate(odd))),
                    *(result(f"c{n}", ToolResult.error("No such tool."), index=n) for n in range(4)),
                )
            )
            assert len(of(at, "call")) == 4

    @awaited
    async def test_no_text_leaves_empty(self, serve: Serve) -> None:
        async with serve(*[Play("fine")] * 4) as at:
            for empty in ("", " ", "\n\t", "\u2003"):
                await at.turn(
                    request(
                        said(empty),
                        turn(words=empty),
                        said("Go"),
                        turn(made("c1", "c1"), words=empty, step=1),
                        result("c1", ToolResult.text(empty), step=1),
                        said(empty, "System"),
                        instructions=empty,
                    )
                )
                assert all(told.text.strip() for told in at.told)

    @awaited
    async def test_hostile_texts_are_taken(self, serve: Serve) -> None:
        async with serve(*[Play("fine")] * len(HOSTILE)) as at:
            for text in HOSTILE:
                schema: dict[str, JsonValue] = {
                    "type": "object",
                    "properties": {"a": {"type": "string", "default": text}},
                }
                offer = Offer("look", text, schema)
                await at.turn(
                    request(
                        said(text),
                        turn(made("c1", text, text, text), words=text),
                        result("c1", ToolResult.text(text)),
                        turn(words=text, step=1),
                        said(text, "System"),
                        instructions=text,
                        tools=(offer,),
                    )
                )

    @awaited
    async def test_half_a_surrogate_pair_leaves_as_a_replacement(self, serve: Serve) -> None:
        offer = Offer("look", "Look \ud800.", {"type": "object", "properties": {}, "additionalProperties": False})
        async with serve(Play("fine")) as at:
            await at.turn(request(instructions="Be \udfff.", tools=(offer,)))
            assert at.told[0].text == "Be \ufffd."

    @awaited
    async def test_an_image_reaches_the_model_or_is_named(self, serve: Serve) -> None:
        shown = ToolResult.blocks(Text("A map:"), Image(PNG, "image/png"))
        async with serve(Play("fine")) as at:
            await at.turn(request(said("Go"), turn(made("c1", "c1")), result("c1", shown)))
            (told,) = of(at, "result")
        assert told.text.startswith("A map:")
        assert told.media == ("image/png",) or f"[image, image/png, {len(PNG)} bytes]" in told.text

    @pytest.mark.parametrize(
        "block",
        [
            pytest.param(Image(b"no image at all", "image/png"), id="an image that is none"),
            pytest.param(Image(PNG, "image/jpeg"), id="an image under a wrong name"),
            pytest.param(Image(b"", "image/png"), id="an empty image"),
            pytest.param(Image(b"II*\x00", "image/tiff"), id="an image that few read"),
            pytest.param(Audio(b"RIFF....WAVE", "audio/wav"), id="a sound"),
            pytest.param(File(b"%PDF-1.7", "application/pdf", "a.pdf"), id="a document"),
            pytest.param(File(b"%PDF-1.7", "application/pdf"), id="a document without a name"),
            pytest.param(File(b"\x00\x01", "application/x-unheard-of", "\n"), id="any other bytes"),
            pytest.param(File(b"", "text/plain", ""), id="an empty file"),
        ],
    )
    def test_no_medium_is_refused(self, serve: Serve, block: Any) -> None:
        @awaited
        async def main() -> None:
            async with serve(*[Play("fine")] * 3) as at:
                for blocks in ([block], [Text(""), block], [block, Text("and more"), Image(PNG)]):
                    shown = ToolResult.blocks(*blocks)
                    await at.turn(request(said("Go"), turn(made("c1", "c1")), result("c1", shown)))
                    (told,) = of(at, "result")
                    assert told.media or "bytes]" in told.text

        main()

    @awaited
    async def test_media_of_a_message_reach_the_model_or_are_named_in_their_places(self, serve: Serve) -> None:
        given = (Image(PNG), Audio(WAV), File(b"%PDF-1.7", "application/pdf", "a.pdf"), Link("https://a.example", "A"))
        first = said("", "Human", Text("What is it?"), *given, File(b"one\ntwo", "text/plain", "b.txt"))
        second = said("", "Human", Image(PNG, "image/jpeg"))
        async with serve(Play("fine")) as at:
            await at.turn(request(first, turn(words="A dot."), second))
            told = of(at, "user")
        words = "\n".join(one.text for one in told)
        media = [kind for one in told for kind in one.media]
        for block, kind in ((given[0], "image/png"), (given[1], "audio/wav"), (given[2], "application/pdf")):
            assert (kind in media) is not (block_text(block) in words), "it is shown or named, once"
        assert words.startswith("What is it?")
        assert "A <https://a.example>" in words
        assert "[file b.txt, text/plain, 7 bytes]\none\ntwo" in words
        assert media.count("image/png") in (0, 2)

    @pytest.mark.parametrize(
        "blocks",
        [
            pytest.param((Text(""), Image(PNG)), id="an image alone"),
            pytest.param((Text(" "), Text("")), id="nothing to read"),
            pytest.param((Image(PNG + bytes(21 << 20)), Text("Large.")), id="a large image"),
            pytest.param((Image(b"II*\x00"), File(b"\x00", "a/b", "\n"), Audio(b"")), id="what nobody reads"),
            pytest.param((File(b"%PDF-1.7"), Audio(b"\xff\xfb"), Audio(b"OggS"), Audio(b"fLaC")), id="other kinds"),
        ],
    )
    def test_no_medium_of_a_message_is_refused(self, serve: Serve, blocks: tuple[Block, ...]) -> None:
        @awaited
        async def main() -> None:
            async with serve(Play("fine")) as at:
                await at.turn(request(said("", "Human", *blocks)))
                told = of(at, "user")
            assert all(one.media or one.text.strip() for one in told)

        main()

    @awaited
    async def test_a_result_left_out_for_space_is_a_pointer(self, serve: Serve) -> None:
        kept = ToolResult.blocks(Text("very long"), Image(PNG))
        items = (said("Go"), turn(made("c1", "p1")), result("c1", kept, size=9000))
        async with serve(Play("fine")) as at:
            await at.turn(request(*items, elided=frozenset({2})))
            (told,) = of(at, "result")
        assert 'read_result(call_id="c1")' in told.text
        assert "very long" not in told.text
        assert not told.media

    @pytest.mark.parametrize("choice", ["auto", "required", "none"])
    def test_the_choice_of_tools_is_sent(self, serve: Serve, choice: Any) -> None:
        @awaited
        async def main() -> None:
            async with serve(Play("fine"), Play("fine")) as at:
                await at.turn(request(tool_choice=choice))
                assert at.server.choice(at.last.body) == choice
                assert list(at.server.tools(at.last.body)) == ["look"] or choice == "none"
                await at.turn(request(tool_choice=choice, tools=()))
                assert at.server.tools(at.last.body) == {}

        main()

    @awaited
    async def test_an_earlier_request_is_the_beginning_of_a_later_one(self, serve: Serve) -> None:
        items: list[Item] = [
            said("Go"),
            turn(made("a", "same"), words="One."),
            result("a", ToolResult.text("1")),
            turn(made("b", "same"), step=1),
            result("b", ToolResult.text("2"), step=1),
        ]
        async with serve(Play("fine"), Play("fine")) as at:
            await at.turn(request(*items[:3]))
            before = at.told
            await at.turn(request(*items))
            assert at.told[: len(before)] == before

    @awaited
    async def test_opaque_reasoning_goes_back_to_its_origin_and_to_nobody_else(self, serve: Serve) -> None:
        thought = "a thought that is sealed"
        play = Play("Looking.", calls=[("c1", "look", "{}")], reasoning=thought)
        async with serve(play, Play("fine"), Play("fine")) as at:
            first = await at.turn()
            items = (said("Hello"), turn(made("c1", "c1"), words="Looking.", reasoning=first.reasoning))
            await at.turn(request(*items, result("c1", ToolResult.text("1"))))
            assert bool(of(at, "opaque")) is (first.reasoning is not None)
            foreign: Any
            for foreign in (
                {"wire": f"{CANARY}-wire", "origin": "x", "items": [{"type": "reasoning", "id": CANARY}]},
                {**(first.reasoning or {}), "origin": "another", "extra": CANARY},
                [{"type": "reasoning", "encrypted_content": CANARY}],
                CANARY,
            ):
                at.server.add(Play("fine"))
                items = (said("Hello"), turn(made("c1", "c1"), words="Looking.", reasoning=foreign))
                await at.turn(request(*items, result("c1", ToolResult.text("1"))))
                assert of(at, "opaque") == []
                assert CANARY.encode() not in at.last.raw
                assert thought.encode() not in at.last.raw

    @awaited
    async def test_nothing_but_the_models_half_leaves(self, serve: Serve) -> None:
        shown = (
            ToolResult.text("Refunded.")
            .with_details({"secret": f"{CANARY}-details"})
            .with_narration(f"{CANARY}-narration")
            .with_extensions(f"{CANARY}-extension")
        )
        items = (said("Go"), turn(made("c1", "c1")), result("c1", shown))
        for elided in (frozenset[int](), frozenset({2})):
            async with serve(Play("fine")) as at:
                await at.turn(request(*items, elided=elided, tools=(LOOK,)))
                assert CANARY.encode() not in at.last.raw
                assert (b"Refunded." in at.last.raw) is not bool(elided)

"""Prompts of more than text: what is taken, what a model reads of it, and where it stands on record."""

from pathlib import Path
from typing import Any

import pytest

from counterfoil import Agent, Audio, File, Image, Json, Link, Runtime, Text
from counterfoil.core.content import Kept
from counterfoil.core.context import MEDIA_TOKENS, estimate
from counterfoil.core.errors import Conflict
from counterfoil.core.items import Message
from counterfoil.core.limits import PROMPT_BYTES
from counterfoil.core.media import prompt_of, read_as, shown_as
from counterfoil.testing import ScriptedModel, say
from counterfoil.testing.fake_server import Play
from counterfoil.testing.model_bench import KEY, PNG, WAV, said
from tests.helpers import Place, both, go, requests
from tests.wires import WIRES

PDF = b"%PDF-1.7"
PROMPT = [
    "What is on it?",
    Image(PNG),
    "And in these?",
    File(PDF, "application/pdf", "a.pdf"),
    File(b"one", "text/plain"),
]
TOLD = (
    f"What is on it?\n[image, image/png, {len(PNG)} bytes]\nAnd in these?\n[file a.pdf, application/pdf, 8 bytes]\n"
    "[file, text/plain, 3 bytes]"
)


# ------------------------------------------------------------------------------------------ what is taken


@pytest.mark.parametrize("given", ["Hello", ["Hello"], Text("Hello"), [Text("Hello")]])
def test_a_prompt_of_one_text_is_text(given: Any) -> None:
    assert prompt_of(given) == ("Hello", ())


def test_a_prompt_of_more_is_its_blocks_and_a_text_with_placeholders() -> None:
    text, blocks = prompt_of(PROMPT)
    assert text == TOLD
    assert blocks == (Text("What is on it?"), PROMPT[1], Text("And in these?"), PROMPT[3], PROMPT[4])
    assert prompt_of(Image(PNG)) == (f"[image, image/png, {len(PNG)} bytes]", (Image(PNG),))
    assert prompt_of(["a", "b"]) == ("a\nb", (Text("a"), Text("b")))
    assert prompt_of((Json({"a": 1}), Link("x:y")))[0] == '{"a":1}\nx:y'


def test_half_a_surrogate_pair_is_replaced() -> None:
    assert prompt_of("\ud800") == ("\ufffd", ())
    assert prompt_of(["\ud800", "b"])[0] == "\ufffd\nb"


@pytest.mark.parametrize("given", [None, 5, b"bytes", {"a": 1}, [None], [b"x"], [["nested"]], Kept("i", 1, "p")])
def test_what_is_neither_text_nor_a_block_is_refused_by_its_type(given: Any) -> None:
    with pytest.raises(TypeError, match=r"expected a prompt of text, Text, Json, Link, Image, Audio or File, got \w+"):
        prompt_of(given)


@pytest.mark.parametrize(
    ("block", "said"),
    [
        (Image(b"II*\x00", "image/tiff"), r"an image in PNG, JPEG, GIF or WebP, by its bytes, got \[image, "),
        (Image(b""), "an image in PNG"),
        (Image(PDF), "an image in PNG"),
        (Image(WAV), "an image in PNG"),
        (Audio(PNG), r"a sound in WAV, MP3, FLAC or Ogg, by its bytes, got \[audio"),
        (File(b"\x00\x01", "application/zip", "a.zip"), r"a file of PDF or of text in UTF-8, by its bytes, got \["),
        (File(b"\xff\xfe", "text/plain"), "a file of PDF or of text in UTF-8"),
        (File(b""), "a file of PDF"),
        (File(PNG, "image/png"), "a file of PDF"),
    ],
)  # fmt: skip  # a row for each
def test_a_medium_that_no_provider_reads_is_refused_before_anything_is_on_record(block: Any, said: str) -> None:
    desk = Agent("desk", ScriptedModel([]))

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            with pytest.raises(ValueError, match=f"expected {said}"):
                await runtime.start("desk", ["Look.", block])
            assert await runtime.runs() == []

    go(main())


def test_an_empty_list_and_too_many_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="something in it"):
        prompt_of([])
    half = Image(PNG + bytes(PROMPT_BYTES // 2))
    prompt_of([half, "and a text"])
    with pytest.raises(ValueError, match=f"providers take {PROMPT_BYTES} in a request"):
        prompt_of([half, half])


# ------------------------------------------------------------------------------------------ what is read


def test_a_medium_is_shown_as_what_its_bytes_are() -> None:
    assert [
        shown_as(b) for b in (Image(PNG, "image/jpeg"), Audio(WAV), File(PDF), Image(PDF), File(PNG), Text("x"))
    ] == [
        *("image/png", "audio/wav", "application/pdf", None, None, None),
    ]


def test_of_a_text_file_its_text_is_read_and_of_other_media_their_names() -> None:
    assert (
        read_as(File(b"\xef\xbb\xbfone\ntwo", "text/plain", "a.txt")) == "[file a.txt, text/plain, 10 bytes]\none\ntwo"
    )
    assert read_as(File(b"\x00")) == "[file, application/octet-stream, 1 bytes]"
    assert read_as(Image(PNG)) == f"[image, image/png, {len(PNG)} bytes]"
    assert read_as(File(PDF)) == "[file, application/octet-stream, 8 bytes]", "a PDF may be all ASCII"
    assert read_as(Text("Hi")) == "Hi"


def test_the_media_of_a_message_count_for_the_context() -> None:
    nothing = estimate(said(""))
    assert estimate(said("", "Human", Image(PNG), Text("x" * 40))) - nothing == MEDIA_TOKENS + 10
    assert estimate(said("", "Human", File(b"x" * 400, "text/plain"))) - nothing > 100


# ---------------------------------------------------------------------------------------------- on record


@both
def test_a_prompt_of_blocks_is_on_record_shown_and_erased(place: Place) -> None:
    desk = Agent("desk", ScriptedModel([say("A dot."), say("Another.")]))

    async def main() -> None:
        async with place.open(desk) as runtime:
            run = await (await runtime.start("desk", PROMPT)).wait()
            assert not await run.send([Image(PNG, "image/jpeg"), "Why?"])
            more = await (await runtime.start("desk", "Go on", interaction=run.interaction_id)).wait()
            assert requests(desk)[0] == [{"role": "user", "content": f"{TOLD}\none"}], "a text file is read"
        async with place.open(desk) as runtime:
            run = await runtime.get(run.id)
            first = run.items[0]
            assert isinstance(first, Message)
            assert (first.text, first.blocks) == prompt_of(PROMPT)
            (row,) = [row for row in await runtime.timeline(run.id) if row.kind == "message"]
            assert f"[image, image/png, {len(PNG)} bytes]" in row.text
            sent = [i for i in (await runtime.get(more.id)).items if isinstance(i, Message) and i.blocks]
            assert [i.blocks for i in sent] == [(Image(PNG, "image/jpeg"), Text("Why?"))]
            await runtime.erase(run.id)
        async with place.open(desk) as runtime:
            (gone, *_) = (await runtime.get(run.id)).items
            assert (gone.text, gone.blocks) == ("(erased)", ())

    go(main())


def test_a_repeat_with_the_same_key_and_blocks_is_the_first_run() -> None:
    desk = Agent("desk", ScriptedModel([say("A dot.")] * 3))

    async def main() -> None:
        async with Runtime(agents=[desk]) as runtime:
            first = await (await runtime.start("desk", PROMPT, key="k")).wait()
            assert (await runtime.start("desk", list(PROMPT), key="k")).id == first.id
            with pytest.raises(Conflict):
                await runtime.start("desk", [*PROMPT[:-1], File(b"two", "text/plain")], key="k")

    go(main())


@pytest.mark.parametrize("wire", list(WIRES))
def test_a_run_with_an_image_goes_on_on_every_wire(tmp_path: Path, wire: str) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"

    async def main() -> None:
        async with Runtime(url, agents=[Agent("desk", ScriptedModel([say("A dot.")]))]) as runtime:
            run = await (await runtime.start("desk", [*PROMPT, Audio(WAV)])).wait()
        async with WIRES[wire].fake([Play("Yes.")], key=KEY) as server:
            desk = Agent("desk", WIRES[wire].model(server.base_url, KEY))
            async with Runtime(url, agents=[desk]) as runtime:
                more = await (await runtime.start("desk", "Sure?", interaction=run.interaction_id)).wait()
                assert more.answer == "Yes."
            await desk.model.aclose()
            assert server.faults == []

    go(main())

"""Every wire that a model is behind: its strict server, and a model of a base URL and a key. One line each."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from counterfoil.adapters.models.anthropic import AnthropicMessages
from counterfoil.adapters.models.google import GoogleGemini
from counterfoil.adapters.models.openai import OpenAIResponses
from counterfoil.adapters.models.openai_chat import OpenAIChat
from counterfoil.testing.fake_anthropic import FakeAnthropic
from counterfoil.testing.fake_google import FakeGoogle
from counterfoil.testing.fake_openai import FakeOpenAI
from counterfoil.testing.fake_responses import FakeResponses
from counterfoil.testing.fake_server import FakeServer


class Wire(NamedTuple):
    fake: type[FakeServer]
    model: Callable[[str, str], Any]


def named(kind: Callable[..., Any], url: str, key: str, **settings: Any) -> Any:
    return kind("fake", base_url=url, api_key=key, **settings)


WIRES = {
    "anthropic": Wire(FakeAnthropic, partial(named, AnthropicMessages)),
    "anthropic strict": Wire(FakeAnthropic, partial(named, AnthropicMessages, strict=True, formats=False, media=False)),
    "google": Wire(FakeGoogle, partial(named, GoogleGemini)),
    "google whole": Wire(FakeGoogle, partial(named, GoogleGemini, stream=False, media=False)),
    "openai": Wire(FakeResponses, partial(named, OpenAIResponses)),
    "openai plain": Wire(FakeResponses, partial(named, OpenAIResponses, strict=False, media=False)),
    "openai-chat": Wire(FakeOpenAI, partial(named, OpenAIChat)),
    "openai-chat strict": Wire(FakeOpenAI, partial(named, OpenAIChat, strict=True)),
}

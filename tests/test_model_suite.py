"""Every wire passes the suite for models; what is peculiar to one stands in its own file."""

import pytest

from counterfoil.testing.model_suite import ModelSuite
from tests.wires import WIRES


class TestAnthropicMessages(ModelSuite):
    @pytest.fixture
    def fake(self):
        return WIRES["anthropic"].fake

    @pytest.fixture
    def make_model(self):
        return WIRES["anthropic"].model


class TestAnthropicMessagesStrict(TestAnthropicMessages):
    @pytest.fixture
    def make_model(self):
        return WIRES["anthropic strict"].model


class TestGoogleGemini(ModelSuite):
    @pytest.fixture
    def fake(self):
        return WIRES["google"].fake

    @pytest.fixture
    def make_model(self):
        return WIRES["google"].model


class TestOpenAIChat(ModelSuite):
    @pytest.fixture
    def fake(self):
        return WIRES["openai-chat"].fake

    @pytest.fixture
    def make_model(self):
        return WIRES["openai-chat"].model


class TestOpenAIChatStrict(TestOpenAIChat):
    @pytest.fixture
    def make_model(self):
        return WIRES["openai-chat strict"].model


class TestOpenAIResponses(ModelSuite):
    @pytest.fixture
    def fake(self):
        return WIRES["openai"].fake

    @pytest.fixture
    def make_model(self):
        return WIRES["openai"].model


class TestOpenAIResponsesPlain(TestOpenAIResponses):
    @pytest.fixture
    def make_model(self):
        return WIRES["openai plain"].model

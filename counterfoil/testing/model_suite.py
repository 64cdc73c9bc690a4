"""What every model's adapter must do, as tests: a class to inherit from.

    class TestMyWire(ModelSuite):
        @pytest.fixture
        def fake(self):
            return MyFakeServer

        @pytest.fixture
        def make_model(self):
            return lambda url, key: MyModel("any", base_url=url, api_key=key)

``fake`` is a fixture that gives the class of the wire's strict server, a subclass of
`counterfoil.testing.fake_server.FakeServer`. ``make_model`` gives a function of base URL and key that gives a model.
"""

from __future__ import annotations

from counterfoil.testing.model_answers import AnswerTests
from counterfoil.testing.model_failures import FailureTests
from counterfoil.testing.model_requests import RequestTests
from counterfoil.testing.model_runs import RunTests


class ModelSuite(AnswerTests, RequestTests, FailureTests, RunTests):
    """Every sentence of `counterfoil.model.Model`, on one wire."""

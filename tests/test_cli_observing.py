"""What `serve` and `work` tell those who look after them, as processes: logs, traces, a webhook, probes."""

from __future__ import annotations

import base64
import json
import re
import signal

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from counterfoil import Runtime
from tests.helpers import go
from tests.test_cli_process import done, serving, typed, until
from tests.test_webhook import Receiver

__all__ = ["typed"]
SECRET = base64.b64encode(bytes(32)).decode()


def attributes(of):
    return {a.key: a.value.string_value for a in of}


def test_a_server_logs_traces_and_posts_what_it_does_as_its_environment_says(typed, tmp_path):
    traces, desk = Receiver(), Receiver()
    with traces.serving() as collector, desk.serving() as hook:
        environment = {
            "COUNTERFOIL_SERVE_PORT": "0", "COUNTERFOIL_SERVE_MODULES": "tests.cli_desk:clumsy tests.cli_desk:waiting",
            "COUNTERFOIL_SERVE_LOG": "json", "COUNTERFOIL_SERVE_TRACES": "1", "COUNTERFOIL_SERVE_WEBHOOK": hook,
            "COUNTERFOIL_WEBHOOK_SECRET": SECRET, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.partition("/hook")[0],
        }  # fmt: skip  # a table
        process = typed("serve", "--dev", env=environment)
        address = serving(process)
        begun = httpx2.post(f"{address}/v1/runs", json={"agent": "clumsy", "prompt": "secret-prompt"})
        run = begun.json()["runId"]
        until(lambda: httpx2.get(f"{address}/v1/runs/{run}").json()["status"] == "completed", process)
        httpx2.post(f"{address}/v1/runs", json={"agent": "waiting", "prompt": "Go"})
        until((tmp_path / "go.began").exists, process)
        process.send_signal(signal.SIGTERM)
        until(lambda: httpx2.get(f"{address}/readyz").status_code == 503, process)
        (tmp_path / "go").touch()
        code, out, err = done(process)
    assert (code, err.splitlines()[-1]) == (0, "stopped")
    lines = [json.loads(line) for line in out.splitlines()]
    assert {line["code"] for line in lines if line.get("runId") == run and "code" in line} == {404, 4003, 5000}
    assert begun.headers["x-request-id"] in {line.get("requestId") for line in lines}
    posted = [json.loads(body)["data"] for _, body in desk.seen]
    assert sorted((data["runId"], data["code"]) for data in posted) == [(run, 404), (run, 4003), (run, 5000)]
    kinds = {value for headers, _ in traces.seen for name, value in headers.items() if name.lower() == "content-type"}
    assert kinds == {"application/x-protobuf"}
    spans = []
    for _, body in traces.seen:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            assert attributes(resource.resource.attributes)["service.name"] == "counterfoil"
            spans += [span for scope in resource.scope_spans for span in scope.spans]
    assert sorted({span.name for span in spans}) == [
        "chat ScriptedModel", "execute_tool get_order", "execute_tool wait_for_file", "invoke_agent clumsy",
        "invoke_agent waiting",
    ]  # fmt: skip  # two rows
    (left,) = [span for span in spans if span.name == "invoke_agent waiting"]
    assert attributes(left.attributes)["counterfoil.run.status"] == "left"
    assert "secret" not in out


def test_a_worker_answers_probes_until_it_has_given_its_runs_back(typed, tmp_path):
    async def start():
        async with Runtime(f"sqlite:///{tmp_path}/.counterfoil/counterfoil.db") as runtime:
            await runtime.start("waiting", "Go")

    process = typed("work", "tests.cli_desk:waiting", "--listen", "127.0.0.1:0")
    said = process.stderr.readline() + process.stderr.readline()
    address = re.search(r"probes on (http://\S+)", said)[1]
    go(start())
    until((tmp_path / "go.began").exists, process)
    assert httpx2.get(f"{address}/readyz").status_code == httpx2.get(f"{address}/healthz").status_code == 200
    assert httpx2.get(f"{address}/metrics").status_code == 401
    assert httpx2.get(f"{address}/v1/runs").status_code == 404
    process.send_signal(signal.SIGTERM)
    until(lambda: httpx2.get(f"{address}/readyz").status_code == 503, process)
    assert "about to end" in httpx2.get(f"{address}/readyz").json()["detail"]
    assert httpx2.get(f"{address}/healthz").status_code == 200
    (tmp_path / "go").touch()
    assert done(process)[0] == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--webhook", "https://desk.example"], "set COUNTERFOIL_WEBHOOK_SECRET"),
        (["--listen", "here"], "expected an address and a port"),
    ],
)
def test_what_cannot_be_observed_is_said_before_anything_is_done(typed, words, told):
    code, _, error = done(typed("work", "tests.cli_desk:waiting", *words))
    assert code == 2
    assert told in error

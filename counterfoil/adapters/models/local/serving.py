"""The child process: serves one model on loopback until its standard input closes.

It is started as a script and imports nothing of the package, so that it starts fast. A line of JSON on standard input
says what to serve; a line of JSON on standard output says where, and what the model's chat template can do.
"""

import http.client
import importlib
import json
import os
import sys
from typing import Any


def _get(connection: http.client.HTTPConnection, path: str, key: str) -> Any:
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
    answer = connection.getresponse()
    body = answer.read()
    if answer.status != http.client.OK:
        sys.exit(f"expected the server to answer {path}, got status {answer.status}")
    return json.loads(body)


def _serve() -> None:
    settings = json.loads(sys.stdin.buffer.readline())
    # The server logs to standard output as well; the parent reads only our line there.
    answer = os.dup(1)
    os.dup2(2, 1)
    native: Any = importlib.import_module("xllamacpp")
    params = native.CommonParams()
    params.model.path = settings["weights"]
    params.model_alias = {settings["name"]}
    if settings["template"] is not None:
        params.chat_template = settings["template"]
    params.use_jinja = True
    params.api_keys = [settings["api_key"]]
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # the system picks a free one, so there is no race for it
    params.n_ctx = settings["context_tokens"]
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = settings["threads"]
    params.cpuparams_batch.n_threads = settings["threads"]
    params.ui = False
    params.warmup = False
    server = native.Server(params)
    address = server.listening_address
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=settings["start_timeout"])
    _get(connection, "/health", settings["api_key"])
    can = _get(connection, "/props", settings["api_key"]).get("chat_template_caps") or {}
    told = {"address": address, "knows_tools": bool(can.get("supports_tools", True))}
    os.write(answer, json.dumps(told).encode() + b"\n")
    os.close(answer)
    while sys.stdin.buffer.read(1024):
        pass
    # No clean-up: the server keeps no state, and its destructor would wait for an answer that nobody reads.
    os._exit(0)


if __name__ == "__main__":
    _serve()

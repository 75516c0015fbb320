"""A LiteLLM proxy with one model, for comparison: started as its handbook says, one process, no database."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path

START_S = 180.0
"""It imports for ten seconds where nothing else runs."""


def find_litellm(given: str | None) -> str | None:
    """Return the command that was given, or the one that is installed; None = there is none."""
    return shutil.which(given or "litellm")


@contextlib.contextmanager
def litellm_proxy(command: str, folder: Path, host: str, model: str) -> Generator[tuple[str, str, int]]:
    """Run the proxy for as long as the block runs; yields its address, its key and its process id."""
    config = folder / "litellm.json"
    route = {"model": f"openai/{model}", "api_base": f"{host}/v1", "api_key": "key"}
    config.write_text(json.dumps({
        "model_list": [{"model_name": model, "litellm_params": route}],
        "litellm_settings": {"num_retries": 0, "telemetry": False},
        "general_settings": {"master_key": "sk-benchmark"},
    }))  # fmt: skip
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        **os.environ,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_PROXY": "127.0.0.1",
        "PYTHONPATH": "",
    }
    with (folder / "litellm.log").open("wb") as log:
        arguments = [command, "--config", config, "--host", "127.0.0.1", "--port", str(port)]
        proxy = subprocess.Popen(arguments, env=environ, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(f"{address}/health/liveliness", proxy, folder / "litellm.log")
        yield address, "sk-benchmark", proxy.pid
    finally:
        proxy.terminate()
        proxy.wait(30)


def wait_for(url: str, proxy: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until the proxy answers."""
    until = time.monotonic() + START_S
    while proxy.poll() is None and time.monotonic() < until:
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.5)
    raise SystemExit(f"The LiteLLM proxy did not start:\n{log.read_text(errors='replace')[-2000:]}")

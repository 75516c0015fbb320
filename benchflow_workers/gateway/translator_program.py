"""A LiteLLM proxy that ends with the worker that started it; run as a program, imported by nobody.

Arguments: a file with its configuration, and the port of the loopback it listens on. Its
standard input is a pipe of the worker's: the end of it is the end of the worker, however that came.
"""

import os
import signal
import sys
import threading
from importlib import import_module


def _end_with_the_worker() -> None:
    while os.read(0, 1 << 16):
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def main(config: str, port: str) -> None:
    """Serve until the worker ends."""
    # Before the import, which takes ten seconds.
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    import_module("litellm").run_server(["--config", config, "--host", "127.0.0.1", "--port", port])


if __name__ == "__main__":
    main(*sys.argv[1:])

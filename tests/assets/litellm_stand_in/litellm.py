"""What is run in the place of LiteLLM where only its start and its end matter."""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def run_server(args):
    with open(args[1]) as file:
        config = json.load(file)
    prefix = config["model_list"][0]["litellm_params"]["model"]
    if prefix == "ends/*":
        sys.exit(3)
    if prefix == "silent/*":
        signal.pause()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            said = json.dumps({"pid": os.getpid(), "environ": dict(os.environ), "config": config}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, *args):
            pass

    ThreadingHTTPServer(("127.0.0.1", int(args[5])), Handler).serve_forever()

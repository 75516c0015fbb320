"""A tiny agent of the Agent Client Protocol: a program of its own that needs nothing but Python 3.8.

For tests of tasks, verifiers and runs, without a model or with a scripted one. Give its file as an
agent, `acp:PATH`, and say in the variable TINY_AGENT, as JSON, what it does::

    from benchflow_workers.testing_agent import FILE, act

    AgentSpec(name=f"acp:{FILE}", env=(act(run="echo 42 > answer.txt", say="Done."),))

`run`: a shell command it runs as its tool call; `say`: what it says in the end; `asks_model`: it asks the
model of the job, once for each prompt, and says what that answered; `noise`: lines printed that are no
messages; `chunks`: in how many pieces it speaks; `hangs_at`, `dies_at`, `fails_at`: a method of the protocol
(`initialize`, `session/new`, `session/prompt`) at which it never answers, ends with exit code 7, or answers with
the error in `error`; `asks_permission`: it asks before its tool call; `forks`: it leaves a process that holds
its output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from typing import Any, Dict

Json = Dict[str, Any]

FILE = os.path.abspath(__file__)
"""The program."""

VARIABLE = "TINY_AGENT"

DEFAULTS: Json = {
    "run": "",
    "say": "Done.",
    "asks_model": False,
    "noise": 0,
    "chunks": 1,
    "hangs_at": "",
    "dies_at": "",
    "fails_at": "",
    "error": "something went wrong",
    "asks_permission": False,
    "forks": False,
}
"""What it does unless it is told otherwise."""

_EXIT_CODE = 7
_INTERNAL_ERROR = -32603


def act(**what: Any) -> str:
    """Return the variable, as `NAME=VALUE`, that makes it do something; see the module.

    Raises:
        TypeError: There is no such behaviour.
    """
    unknown = set(what) - set(DEFAULTS)
    if unknown:
        raise TypeError("the agent has no {}".format(", ".join(sorted(unknown))))
    return "{}={}".format(VARIABLE, json.dumps(what))


class Agent:
    """Answers the messages that come on standard input."""

    def __init__(self, what: Json) -> None:
        self.what = what
        self.requests = 0

    def serve(self) -> None:
        """Answer until there are no more messages."""
        for _ in range(self.what["noise"]):
            sys.stdout.write("a line that is no message\n")
        for line in sys.stdin:
            message = json.loads(line)
            method = message.get("method")
            if method is None or "id" not in message:
                continue
            if method == self.what["hangs_at"]:
                while sys.stdin.readline():
                    pass
                return
            if method == self.what["dies_at"]:
                sys.stdout.flush()
                os._exit(_EXIT_CODE)
            if method == self.what["fails_at"]:
                error = {"code": _INTERNAL_ERROR, "message": self.what["error"]}
                self.send({"id": message["id"], "error": error})
            else:
                self.send({"id": message["id"], "result": self.answer(method, message.get("params") or {})})

    def answer(self, method: str, params: Json) -> Json:
        """Return the result of a request."""
        if method == "initialize":
            info = {"name": "tiny-agent", "version": "1"}
            return {"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": info}
        if method == "session/new":
            return {"sessionId": "tiny"}
        if method == "session/prompt":
            return self.work("".join(part.get("text", "") for part in params.get("prompt", ())))
        return {}

    def work(self, prompt: str) -> Json:
        """Take a prompt's turn and return its end."""
        if self.what["forks"]:
            subprocess.Popen(["sleep", "600"])
        if self.what["run"]:
            self.run_tool()
        said = self.ask_model(prompt) if self.what["asks_model"] else self.what["say"]
        pieces = max(1, self.what["chunks"])
        size = max(1, -(-len(said) // pieces))
        for start in range(0, len(said), size):
            text = {"type": "text", "text": said[start : start + size]}
            self.update({"sessionUpdate": "agent_message_chunk", "content": text})
        return {"stopReason": "end_turn"}

    def run_tool(self) -> None:
        """Run the command, as a tool call."""
        call = {"toolCallId": "call-1", "title": self.what["run"], "kind": "execute"}
        if self.what["asks_permission"] and not self.is_allowed(call):
            return
        self.update(dict(call, sessionUpdate="tool_call", status="in_progress"))
        done = subprocess.run(
            ["sh", "-c", self.what["run"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        end = {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "call-1",
            "status": "failed" if done.returncode else "completed",
            "rawOutput": done.stdout.decode("utf-8", "replace"),
        }
        self.update(end)

    def is_allowed(self, call: Json) -> bool:
        """Ask for permission and return whether it was given."""
        self.requests += 1
        options = [
            {"optionId": "no", "name": "No", "kind": "reject_once"},
            {"optionId": "yes", "name": "Yes", "kind": "allow_once"},
        ]
        params = {"sessionId": "tiny", "toolCall": call, "options": options}
        self.send({"id": self.requests, "method": "session/request_permission", "params": params})
        for line in sys.stdin:
            message = json.loads(line)
            if message.get("id") == self.requests and "result" in message:
                return bool(message["result"]["outcome"].get("optionId") == "yes")
        return False

    def ask_model(self, prompt: str) -> str:
        """Return what the model of the job answers, asked as a chat completion."""
        body = {
            "model": os.environ["BENCHFLOW_PROVIDER_MODEL"],
            "messages": [{"role": "user", "content": prompt}],
        }
        request = urllib.request.Request(
            os.environ["BENCHFLOW_PROVIDER_BASE_URL"] + "/chat/completions",
            data=json.dumps(body).encode(),
            headers={
                "Content-Type": "application/json",
                "Authorization": "Bearer " + os.environ["BENCHFLOW_PROVIDER_API_KEY"],
            },
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return str(json.load(answer)["choices"][0]["message"]["content"])

    def update(self, update: Json) -> None:
        """Say what is done."""
        self.send({"method": "session/update", "params": {"sessionId": "tiny", "update": update}})

    def send(self, message: Json) -> None:
        """Write one message."""
        sys.stdout.write(json.dumps(dict(message, jsonrpc="2.0")) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    Agent(dict(DEFAULTS, **json.loads(os.environ.get(VARIABLE) or "{}"))).serve()

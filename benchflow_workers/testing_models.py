"""A scripted model server on the loopback: for tests of agents, without a provider, a key or a cost.

It speaks the four dialects, plain and streamed. To a request that offers a tool it answers
with a call of that tool, once; to everything else with text::

    with scripted_models(Script(command="echo done > out.txt")) as server:
        ...  # BENCHFLOW_PROVIDER_BASE_URL=server.url
    assert server.asked[0].key == "the-key"

`Script` says what goes wrong: slow answers, errors first, streams that are cut, usage that is not told or not true.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web

__all__ = ["Asked", "Script", "ScriptedModels", "scripted_models"]

_START_S: Final = 30.0
_SHELLS: Final = (
    "bash", "Bash", "shell", "exec_command", "run_shell_command", "local_shell", "shell_command", "execute", "terminal", "execute_bash",
)  # fmt: skip

_PROMPT_IDS: Final = list(range(1, 101))
_ANSWER_IDS: Final = list(range(201, 208))
_PARTS: Final = (slice(0, 3), slice(3, None))  # of an answer's tokens, in the events of a stream


@dataclass(frozen=True, slots=True)
class Script:
    """What the server does.

    Attributes:
        command: Shell command that the tool call asks for; empty = no tool is called.
        text: What it says in the end.
        statuses: Errors that the first calls get, in order; then it answers.
        retry_after_s: What an error asks to wait.
        delay_s: Seconds before each answer.
        is_cut: Streams end in the middle.
        tells_usage: Answers tell their tokens: 100 in, 10 of them cached, 7 out.
        wrong_usage: What stands in the place of each of these numbers; None = they are right.
        tells_tokens: A chat completion tells log probabilities and, as vLLM does, ids of tokens where it is
            asked with `logprobs` and `return_token_ids`: 1 to 100 of the prompt, 201 to 207 of the answer.
        unknown: Keys of a body that are answered with 400.
    """

    command: str = ""
    text: str = "All done."
    statuses: Sequence[int] = ()
    retry_after_s: float | None = None
    delay_s: float = 0.0
    is_cut: bool = False
    tells_usage: bool = True
    wrong_usage: Any = None
    tells_tokens: bool = True
    unknown: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request that came.

    Attributes:
        path: Its path.
        key: The key it carried, from whichever header.
        body: Its JSON object.
        headers: Its headers, names in lower case.
    """

    path: str
    key: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]


@dataclass
class ScriptedModels:
    """A running server.

    Attributes:
        script: What it does; may be changed while it runs.
        asked: Every request, in order.
        host: Its address, without a version.
    """

    script: Script
    asked: list[Asked] = field(default_factory=list)
    host: str = ""

    @property
    def url(self) -> str:
        """Return the base URL of the OpenAI dialects."""
        return f"{self.host}/v1"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer one request as the script says."""
        body = await request.json() if request.can_read_body else {}
        self.asked.append(
            Asked(request.path, _key(request), body, {k.lower(): v for k, v in request.headers.items()})
        )
        if self.script.delay_s:
            await asyncio.sleep(self.script.delay_s)
        if len(self.asked) <= len(self.script.statuses):
            return self._error(self.script.statuses[len(self.asked) - 1])
        if any(key in body for key in self.script.unknown):
            return self._error(400)
        made = _answer(request.path, body, self.script)
        if made is None:
            return web.json_response({"error": {"message": "no such path"}}, status=404)
        if not made.is_streamed:
            return web.json_response(made.whole)
        return await self._stream(request, made)

    def _error(self, status: int) -> web.Response:
        wait = self.script.retry_after_s
        headers = {} if wait is None else {"retry-after": f"{wait:g}"}
        return web.json_response(
            {"error": {"message": f"scripted {status}", "type": "scripted"}}, status=status, headers=headers
        )

    async def _stream(self, request: web.Request, made: _Made) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        events = made.events
        for event in events[: len(events) // 2] if self.script.is_cut else events:
            name = f"event: {event['type']}\n" if made.is_named else ""
            await response.write(f"{name}data: {json.dumps(event)}\n\n".encode())
        if self.script.is_cut and request.transport is not None:
            request.transport.abort()
            return response
        if made.has_done:
            await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


@dataclass(frozen=True, slots=True)
class _Made:
    """An answer in both forms."""

    whole: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    is_streamed: bool
    is_named: bool = False
    has_done: bool = False


def _key(request: web.Request) -> str:
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
    return bearer or request.headers.get("x-api-key", "") or request.headers.get("x-goog-api-key", "")


def _answer(path: str, body: Mapping[str, Any], script: Script) -> _Made | None:
    if path.endswith("/chat/completions"):
        return _chat(body, script)
    if path.endswith("/responses"):
        return _responses(body, script)
    if path.endswith("/messages"):
        return _messages(body, script)
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return _generate(path, body, script)
    return None


def _tool(names: Iterator[str], script: Script, *, is_over: bool) -> str | None:
    """Return the tool that is called now; None = text comes."""
    offered = list(names)
    return (
        next((name for name in _SHELLS if name in offered), None) if script.command and not is_over else None
    )


def _arguments(name: str, script: Script) -> dict[str, Any]:
    more = {"security_risk": "LOW"} if name == "terminal" else {}  # OpenHands asks its model for it
    if name == "exec_command":
        return {"cmd": script.command}
    return {"command": ["bash", "-lc", script.command] if name == "shell" else script.command, **more}


def _chat(body: Mapping[str, Any], script: Script) -> _Made:
    names = (tool.get("function", {}).get("name") for tool in body.get("tools", ()))
    is_over = any(message.get("role") == "tool" for message in body.get("messages", ()))
    tool = _tool(names, script, is_over=is_over)
    message: dict[str, Any] = {"role": "assistant", "content": script.text}
    if tool is not None:
        function = {"name": tool, "arguments": json.dumps(_arguments(tool, script))}
        call = {"index": 0, "id": "call_1", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    reason = "stop" if tool is None else "tool_calls"
    usage = _usage(script, {
        "prompt_tokens": 100,
        "completion_tokens": 7,
        "total_tokens": 107,
        "prompt_tokens_details": {"cached_tokens": 10},
    })  # fmt: skip
    base = {"id": "chat-1", "created": 1, "model": body.get("model")}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {**base, "object": "chat.completion", "choices": [choice]}
    part = {**base, "object": "chat.completion.chunk"}
    events = [
        {**part, "choices": [{"index": 0, "delta": message, "finish_reason": None}]},
        {**part, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    ]
    if script.tells_usage:
        whole["usage"] = usage
        if (body.get("stream_options") or {}).get("include_usage"):
            events.append({**part, "choices": [], "usage": usage})
    if script.tells_tokens:
        _tell_tokens(body, whole, events)
    return _Made(whole, events, body.get("stream") is True, has_done=True)


def _tell_tokens(body: Mapping[str, Any], whole: dict[str, Any], events: Sequence[dict[str, Any]]) -> None:
    """Add what is asked for of tokens: all of it to a plain answer, in two parts to a stream."""
    (choice,) = whole["choices"]
    message = choice["message"]
    text = message["content"] or message["tool_calls"][0]["function"]["arguments"]
    ends = [len(text) * number // len(_ANSWER_IDS) for number in range(len(_ANSWER_IDS) + 1)]
    pieces = [text[start:end] for start, end in itertools.pairwise(ends)]
    content = [
        {"token": piece, "logprob": -0.125 * number, "bytes": list(piece.encode()), "top_logprobs": []}
        for number, piece in enumerate(pieces)
    ]
    parts = [
        (choice, slice(None)),
        *((event["choices"][0], cut) for event, cut in zip(events, _PARTS, strict=False)),
    ]
    for part, cut in parts:
        if body.get("logprobs") is True:
            part["logprobs"] = {"content": content[cut]}
        if body.get("return_token_ids") is True:
            part["token_ids"] = _ANSWER_IDS[cut]
    if body.get("return_token_ids") is True:
        whole["prompt_token_ids"] = events[0]["prompt_token_ids"] = _PROMPT_IDS


def _usage(script: Script, usage: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an answer tells of its tokens: true numbers, or what the script has in their place."""
    wrong = script.wrong_usage
    if wrong is None:
        return dict(usage)
    return {key: _usage(script, value) if isinstance(value, dict) else wrong for key, value in usage.items()}


def _responses(body: Mapping[str, Any], script: Script) -> _Made:
    given = body.get("input")
    items = given if isinstance(given, list) else []
    is_over = any(str(item.get("type", "")).endswith("_call_output") for item in items)
    tool = _tool(
        (tool.get("name", tool.get("type")) for tool in body.get("tools", ())), script, is_over=is_over
    )
    if tool is None:
        text = {"type": "output_text", "text": script.text, "annotations": []}
        item: dict[str, Any] = {
            "type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [text],
        }  # fmt: skip
    else:
        item = {
            "type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool,
            "arguments": json.dumps(_arguments(tool, script)), "status": "completed",
        }  # fmt: skip
    usage = _usage(script, {
        "input_tokens": 100, "input_tokens_details": {"cached_tokens": 10}, "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 107,
    })  # fmt: skip
    whole = {
        "id": "resp_1", "object": "response", "created_at": 1, "status": "completed", "model": body.get("model"),
        "output": [item], "usage": usage if script.tells_usage else None, "tools": [], "parallel_tool_calls": False,
        "tool_choice": "auto",
    }  # fmt: skip
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": begun},
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": whole},
    ]
    numbered = [{**event, "sequence_number": number} for number, event in enumerate(events)]
    return _Made(whole, numbered, body.get("stream") is True, is_named=True)


def _messages(body: Mapping[str, Any], script: Script) -> _Made:
    contents = [message.get("content") for message in body.get("messages", ())]
    parts = [part for content in contents if isinstance(content, list) for part in content]
    is_over = any(part.get("type") == "tool_result" for part in parts)
    tool = _tool((tool.get("name") for tool in body.get("tools", ())), script, is_over=is_over)
    block: dict[str, Any] = {"type": "text", "text": script.text}
    delta: dict[str, Any] = {"type": "text_delta", "text": script.text}
    if tool is not None:
        arguments = {**_arguments(tool, script), "description": "work"}
        block = {"type": "tool_use", "id": "toolu_1", "name": tool, "input": arguments}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(arguments)}
    reason = "end_turn" if tool is None else "tool_use"
    usage = _usage(script, {
        "input_tokens": 90,
        "output_tokens": 7,
        "cache_read_input_tokens": 10,
        "cache_creation_input_tokens": 0,
    })  # fmt: skip
    whole = {
        "id": "msg_1", "type": "message", "role": "assistant", "model": body.get("model"), "content": [block],
        "stop_reason": reason, "stop_sequence": None, "usage": usage if script.tells_usage else {},
    }  # fmt: skip
    empty: dict[str, Any] = {"text": ""} if tool is None else {"input": {}}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": {**block, **empty}},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": reason, "stop_sequence": None},
            "usage": whole["usage"],
        },
        {"type": "message_stop"},
    ]
    return _Made(whole, events, body.get("stream") is True, is_named=True)


def _generate(path: str, body: Mapping[str, Any], script: Script) -> _Made:
    tools = body.get("tools", ())
    tools = [tools] if isinstance(tools, Mapping) else tools
    names = (one.get("name") for tool in tools for one in tool.get("functionDeclarations", ()))
    parts = [part for content in body.get("contents", ()) for part in content.get("parts", ())]
    tool = _tool(names, script, is_over=any("functionResponse" in part for part in parts))
    part: dict[str, Any] = {"text": script.text}
    if tool is not None:
        part = {"functionCall": {"name": tool, "args": _arguments(tool, script)}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = _usage(script, {
        "promptTokenCount": 100,
        "candidatesTokenCount": 7,
        "totalTokenCount": 107,
        "cachedContentTokenCount": 10,
    })  # fmt: skip
    whole: dict[str, Any] = {
        "candidates": [candidate],
        "modelVersion": path.rpartition("/")[2].partition(":")[0],
    }
    if script.tells_usage:
        whole["usageMetadata"] = usage
    return _Made(whole, [whole, {"candidates": []}], "streamGenerateContent" in path)


@contextmanager
def scripted_models(script: Script | None = None) -> Generator[ScriptedModels, None, None]:
    """Run a server on a free port of the loopback for as long as the block runs."""
    server, ready, loop = ScriptedModels(script or Script()), threading.Event(), asyncio.new_event_loop()

    async def serve(stop: asyncio.Event) -> None:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", server.answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        server.host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        ready.set()
        await stop.wait()
        await runner.cleanup()

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(stop),), name="scripted-models")
    thread.start()
    try:
        if not ready.wait(_START_S):
            raise RuntimeError("The scripted model server did not start.")
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()

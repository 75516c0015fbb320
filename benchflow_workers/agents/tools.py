"""The tool servers of a task as a file that an agent finds: the form MCP clients read, `{"mcpServers": {...}}`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchflow_client.schema.task import McpServer
from benchflow_workers.sandbox.base import Upload

__all__ = ["MCP_CONFIG", "MCP_CONFIG_PATH", "server_entry", "tool_uploads"]

MCP_CONFIG_PATH: Final = "/opt/benchflow/mcp.json"
"""Where the file stands; not there when the task has no tool servers."""

MCP_CONFIG: Final = "BENCHFLOW_MCP_CONFIG"
"""Variable of the agent that names the file."""

_READABLE: Final = 0o444
"""The agent is to read it; what its headers hold is given to the agent by the task."""

_FILTERS: Final = ("tools", "include_tags", "exclude_tags")
"""Keys that narrow what a server offers; it is the agent's part to keep to them."""


def server_entry(server: McpServer, *, env: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, Any]:
    """Return one server as MCP clients read it.

    Args:
        server: What the task declares.
        env: Its variables, resolved.
        headers: Its headers, resolved.
    """
    if server.transport == "stdio":
        entry = {"command": server.command, "args": list(server.args), "env": dict(env), "cwd": server.cwd}
    else:
        kind = "sse" if server.transport == "sse" else "http"
        entry = {"type": kind, "url": server.url, "headers": dict(headers)}
    entry |= {name: list(getattr(server, name)) for name in _FILTERS}
    return {key: value for key, value in entry.items() if value}


def tool_uploads(servers: Mapping[str, Mapping[str, Any]]) -> Sequence[Upload]:
    """Return the file, or nothing where there are no servers."""
    if not servers:
        return ()
    content = json.dumps({"mcpServers": servers}, ensure_ascii=False, indent=2).encode()
    return (Upload(MCP_CONFIG_PATH, content=content, mode=_READABLE),)

"""What programs print, read whatever its shape: no agent breaks its worker's reader."""

from __future__ import annotations

from typing import Any

import pytest

from benchflow_workers.agents.acp_trajectory import Trajectory
from benchflow_workers.agents.cli import CliAgent
from benchflow_workers.agents.cli_claude import claude_stream
from benchflow_workers.agents.cli_codex import codex_events
from benchflow_workers.agents.cli_openhands import openhands_events
from benchflow_workers.agents.cli_pi import pi_events

ODD: tuple[Any, ...] = ([], {}, [[]], {"type": []}, 7, None, True)


@pytest.mark.parametrize("agent", [claude_stream(), codex_events(), openhands_events(), pi_events()])
@pytest.mark.parametrize("odd", ODD)
def test_events_of_any_shape_are_read(agent: CliAgent, odd: Any) -> None:
    reads = agent.reads
    names = ("type", "id", "status", "exit_code", "text", "aggregated_output", "content", "usage", "name")
    inner = dict.fromkeys(names, odd)
    trajectory = Trajectory()
    for kind in ("item.started", "item.completed", "turn.completed", "result", "message_end", odd):
        for item in (inner, {**inner, "type": "command_execution"}, {**inner, "content": [inner]}):
            event = {"type": kind, "kind": odd, "item": item, "message": item, "usage": odd, "error": odd}
            for update in reads.updates(event):
                trajectory.update(update)
            told = (reads.error(event), reads.is_end(event), reads.usage(event))
            assert [type(one) for one in told[1:]] == [bool, dict]

    assert isinstance(trajectory.events(), list)

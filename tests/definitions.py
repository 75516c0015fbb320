"""Ready-made agents that are nothing but their description."""

from __future__ import annotations

from benchflow_client.schema.agent_definition import AgentDefinition
from benchflow_client.schema.dialect import Dialect


def speaking(*dialects: Dialect) -> AgentDefinition:
    """Return an agent that speaks to its model in one of these ways."""
    return AgentDefinition.model_validate({
        "name": "ready",
        "version": "1.0",
        "description": "An agent.",
        "protocol": "text",
        "install": {"kind": "npm", "packages": ("ready@1.0",), "argv": ("ready",)},
        "dialects": dialects,
    })

"""The ready-made agents of this version, as data; each was driven against a scripted model."""

from __future__ import annotations

import json
from typing import Any, Final

from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox, Launch, Login, Npm

__all__ = ["READY"]

_NODE: Final = "24.19.0"
_MODEL: Final = "${BENCHFLOW_PROVIDER_MODEL}"
_EFFORT: Final = "${BENCHFLOW_REASONING_EFFORT}"
_URL: Final = "${BENCHFLOW_PROVIDER_BASE_URL}"
_KEY: Final = "BENCHFLOW_PROVIDER_API_KEY"


def _on_node(*packages: str, script: str) -> Npm:
    """Return packages with a Node of their own, so that images need none."""
    return Npm(
        packages=(*packages, f"node-linux-${{npm}}@{_NODE}"),
        argv=("node_modules/node-linux-${npm}/bin/node", f"node_modules/{script}"),
    )


def _native(package: str, binary: str) -> Npm:
    return Npm(packages=(f"{package}@${{version}}",), argv=(binary,))


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2)


_CLAUDE_ENV: Final = {
    "ANTHROPIC_MODEL": _MODEL,
    "ANTHROPIC_SMALL_FAST_MODEL": _MODEL,
    "ANTHROPIC_DEFAULT_HAIKU_MODEL": _MODEL,
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "128000",
    "DISABLE_AUTOUPDATER": "1",
    "IS_SANDBOX": "1",
}
"""One model for everything, and no traffic but to it."""

_CLAUDE_LOGIN: Final = Login(
    detect=".claude/.credentials.json", files=(".claude/.credentials.json",), hosts=("api.anthropic.com",)
)
_CLAUDE_SKILLS: Final = ("$HOME/.claude/skills",)
_CLAUDE_EFFORT: Final = Launch(env={"CLAUDE_CODE_EFFORT_LEVEL": _EFFORT})
_CLAUDE_RUN: Final = (
    "-p", "--permission-mode", "bypassPermissions", "--output-format", "stream-json", "--verbose", "--model", _MODEL,
)  # fmt: skip

CLAUDE_CODE: Final = AgentDefinition(
    name="claude-code",
    version="2.1.197",
    description="Claude Code.",
    protocol="claude-stream",
    install=_native(
        "@anthropic-ai/claude-code", "node_modules/@anthropic-ai/claude-code-linux-${npm}/claude"
    ),
    dialects=("anthropic-messages",),
    launch=Launch(arguments=_CLAUDE_RUN, env=_CLAUDE_ENV),
    later=(*_CLAUDE_RUN, "--continue"),
    with_tools=Launch(arguments=("--mcp-config", "${BENCHFLOW_MCP_CONFIG}")),
    with_effort=_CLAUDE_EFFORT,
    without_web=Launch(arguments=("--disallowedTools", "WebSearch,WebFetch")),
    skill_paths=_CLAUDE_SKILLS,
    login=_CLAUDE_LOGIN,
)

CLAUDE_ACP: Final = AgentDefinition(
    name="claude-agent-acp",
    version="0.101.0",
    description="Claude.",
    aliases=("claude",),
    install=_on_node(
        "@agentclientprotocol/claude-agent-acp@${version}",
        script="@agentclientprotocol/claude-agent-acp/dist/index.js",
    ),
    dialects=("anthropic-messages",),
    launch=Launch(env=_CLAUDE_ENV),
    with_effort=_CLAUDE_EFFORT,
    without_web=Launch(
        files={".claude/settings.json": _json({"permissions": {"deny": ["WebSearch", "WebFetch"]}})}
    ),
    skill_paths=_CLAUDE_SKILLS,
    login=_CLAUDE_LOGIN,
)

_CODEX_CONFIG: Final = f"""\
model = "{_MODEL}"
model_provider = "benchflow"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[model_providers.benchflow]
name = "benchflow"
base_url = "{_URL}"
env_key = "{_KEY}"
wire_api = "responses"
"""
_CODEX_OWN: Final = f"""\
model = "{_MODEL}"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
"""
"""The same for an account, at its own provider."""

_CODEX_FILES: Final = (".codex/auth.json",)
_CODEX_ACCOUNT: Final = {"CODEX_ACCESS_TOKEN": "", "CODEX_AUTH_JSON": ".codex/auth.json"}
_CODEX_HOSTS: Final = ("chatgpt.com", "auth.openai.com")
_CODEX_SKILLS: Final = ("$HOME/.agents/skills", "$HOME/.codex/skills")

_CODEX_RUN: Final = ("exec", "--json", "--skip-git-repo-check", "-")

CODEX_CLI: Final = AgentDefinition(
    name="codex-cli",
    version="0.171.0",
    description="Codex.",
    protocol="codex-events",
    install=_native(
        "@openai/codex",
        "node_modules/@openai/codex-linux-${npm}/vendor/${machine}-unknown-linux-musl/bin/codex",
    ),
    dialects=("openai-responses",),
    launch=Launch(
        arguments=("exec", "--json", "--skip-git-repo-check", "-"),
        files={".codex/config.toml": _CODEX_CONFIG},
    ),
    later=("exec", "resume", "--last", "--json", "--skip-git-repo-check", "-"),
    with_effort=Launch(arguments=("-c", f'model_reasoning_effort="{_EFFORT}"')),
    without_web=Launch(arguments=("-c", 'web_search="disabled"')),
    skill_paths=_CODEX_SKILLS,
    login=Login(
        detect=".codex/auth.json",
        files=_CODEX_FILES,
        variables=_CODEX_ACCOUNT,
        hosts=_CODEX_HOSTS,
        launch=Launch(arguments=_CODEX_RUN, files={".codex/config.toml": _CODEX_OWN}),
    ),
)

CODEX_ACP: Final = AgentDefinition(
    name="codex-acp",
    version="2.6.0",
    description="Codex.",
    aliases=("codex",),
    install=_on_node(
        "@agentclientprotocol/codex-acp@${version}", script="@agentclientprotocol/codex-acp/dist/index.js"
    ),
    dialects=("openai-responses",),
    launch=Launch(
        env={"INITIAL_AGENT_MODE": "agent-full-access"}, files={".codex/config.toml": _CODEX_CONFIG}
    ),
    with_effort=Launch(
        files={".codex/config.toml": f'model_reasoning_effort = "{_EFFORT}"\n{_CODEX_CONFIG}'}
    ),
    without_web=Launch(env={"CODEX_CONFIG": _json({"web_search": "disabled"})}),
    skill_paths=_CODEX_SKILLS,
    login=Login(
        detect=".codex/auth.json",
        files=_CODEX_FILES,
        variables=_CODEX_ACCOUNT,
        hosts=_CODEX_HOSTS,
        launch=Launch(
            env={"INITIAL_AGENT_MODE": "agent-full-access"}, files={".codex/config.toml": _CODEX_OWN}
        ),
    ),
)

_GEMINI_SETTINGS: Final[dict[str, Any]] = {
    "security": {"auth": {"selectedType": "gemini-api-key"}},
    "privacy": {"usageStatisticsEnabled": False},
    "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
}

_GEMINI_RUN: Final = ("--acp", "--yolo", "--skip-trust", "-m", _MODEL)
_GEMINI_ENV: Final = {"GEMINI_CLI_TRUST_WORKSPACE": "true", "NO_BROWSER": "1"}

GEMINI: Final = AgentDefinition(
    name="gemini",
    version="0.61.0",
    description="Gemini CLI.",
    install=_on_node("@google/gemini-cli@${version}", script="@google/gemini-cli/bundle/gemini.js"),
    dialects=("gemini-generate",),
    default_model="gemini-2.5-flash",
    launch=Launch(
        arguments=_GEMINI_RUN,
        env=_GEMINI_ENV,
        files={".gemini/settings.json": _json(_GEMINI_SETTINGS)},
    ),
    without_web=Launch(
        files={
            ".gemini/settings.json": _json({
                **_GEMINI_SETTINGS,
                "tools": {"exclude": ["google_web_search", "web_fetch"]},
            })
        }
    ),
    skill_paths=("$HOME/.gemini/skills",),
    login=Login(
        detect=".gemini/oauth_creds.json",
        files=(".gemini/oauth_creds.json", ".gemini/google_accounts.json"),
        hosts=("cloudcode-pa.googleapis.com", "oauth2.googleapis.com"),
        launch=Launch(
            arguments=_GEMINI_RUN,
            env=_GEMINI_ENV,
            files={
                ".gemini/settings.json": _json({
                    **_GEMINI_SETTINGS,
                    "security": {"auth": {"selectedType": "oauth-personal"}},
                })
            },
        ),
    ),
)

QWEN: Final = AgentDefinition(
    name="qwen-code",
    version="0.24.4",
    description="Qwen Code.",
    aliases=("qwen",),
    install=_on_node("@qwen-code/qwen-code@${version}", script="@qwen-code/qwen-code/cli-entry.js"),
    dialects=("openai-completions",),
    launch=Launch(
        arguments=("--acp", "--yolo", "-m", _MODEL),
        env={"OPENAI_MODEL": _MODEL},
        files={
            ".qwen/settings.json": _json({
                "security": {"auth": {"selectedType": "openai"}},
                "privacy": {"usageStatisticsEnabled": False},
                "general": {"disableAutoUpdate": True},
            })
        },
    ),
    skill_paths=("$HOME/.qwen/skills",),
)

_OPENCODE: Final[dict[str, Any]] = {
    "$$schema": "https://opencode.ai/config.json",
    "provider": {
        "benchflow": {
            "npm": "@ai-sdk/openai-compatible",
            "name": "benchflow",
            "options": {"baseURL": _URL, "apiKey": f"{{env:{_KEY}}}"},
            "models": {_MODEL: {"name": _MODEL}},
        }
    },
    "model": f"benchflow/{_MODEL}",
    "small_model": f"benchflow/{_MODEL}",
    "permission": {"*": "allow"},
    "autoupdate": False,
    "share": "disabled",
}

OPENCODE: Final = AgentDefinition(
    name="opencode",
    version="1.18.33",
    description="OpenCode.",
    install=_native("opencode-linux-${npm}", "node_modules/opencode-linux-${npm}/bin/opencode"),
    dialects=("openai-completions",),
    launch=Launch(
        arguments=("acp",),
        env={"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"},
        files={".config/opencode/opencode.json": _json(_OPENCODE)},
    ),
    without_web=Launch(
        files={
            ".config/opencode/opencode.json": _json({
                **_OPENCODE,
                "tools": {"webfetch": False, "websearch": False},
            })
        }
    ),
    skill_paths=("$HOME/.config/opencode/skills", "$HOME/.opencode/skills"),
)


def _pi_models(*, thinks: bool) -> str:
    """Return the models of pi: it asks one for an effort only where that can think."""
    model = {"id": _MODEL, "contextWindow": 200_000, "maxTokens": 32_000, "reasoning": thinks}
    provider = {
        "baseUrl": _URL,
        "api": "openai-completions",
        "apiKey": f"$${_KEY}",
        "models": [model],
    }
    return _json({"providers": {"benchflow": provider}})


PI: Final = AgentDefinition(
    name="pi",
    version="1.6.0",
    description="The pi coding agent.",
    protocol="pi-events",
    install=_on_node(
        "@earendil-works/pi-coding-agent@${version}",
        script="@earendil-works/pi-coding-agent/dist/bundle/cli.js",
    ),
    dialects=("openai-completions",),
    launch=Launch(
        arguments=("-p", "--mode", "json", "--provider", "benchflow", "--model", _MODEL),
        env={"PI_OFFLINE": "1"},
        files={".pi/agent/models.json": _pi_models(thinks=False)},
    ),
    later=("-p", "--continue", "--mode", "json", "--provider", "benchflow", "--model", _MODEL),
    with_effort=Launch(
        arguments=("--thinking", _EFFORT), files={".pi/agent/models.json": _pi_models(thinks=True)}
    ),
    skill_paths=("$HOME/.pi/agent/skills", "$HOME/.agents/skills"),
)

_MINI: Final = (
    'import sys; from minisweagent.run.mini import app; sys.argv += ["-t", sys.stdin.read()]; app()'
)
"""Its prompt is an argument, which a command line of the system's would not take whole."""

MINI: Final = AgentDefinition(
    name="mini-swe-agent",
    version="2.4.6",
    description="Installed in each sandbox.",
    aliases=("mini-swe",),
    protocol="text",
    install=InSandbox(
        script="python3 -m venv /opt/benchflow/mini && "
        "/opt/benchflow/mini/bin/pip install -q --disable-pip-version-check mini-swe-agent==${version}",
        command=f"exec /opt/benchflow/mini/bin/python -c '{_MINI}' \"$@\"",
    ),
    dialects=("openai-completions",),
    launch=Launch(
        arguments=("-m", f"openai/{_MODEL}", "-y", "--exit-immediately"),
        env={
            "OPENAI_API_BASE": _URL,
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "NO_COLOR": "1",
        },
    ),
)

_OPENHANDS: Final = (
    'import sys; from openhands_cli.entrypoint import main; sys.argv += ["-t", sys.stdin.read()]; main()'
)

OPENHANDS: Final = AgentDefinition(
    name="openhands",
    version="1.16.0",
    description="Installed in each sandbox.",
    aliases=("oh",),
    protocol="openhands-events",
    install=InSandbox(
        # It needs Python 3.12, which uv brings where the image has it.
        script="if command -v uv >/dev/null; then uv venv -q --python 3.12 /opt/benchflow/openhands && "
        "uv pip install -q --python /opt/benchflow/openhands/bin/python openhands==${version}; else "
        "python3 -m venv /opt/benchflow/openhands && /opt/benchflow/openhands/bin/pip install -q "
        "--disable-pip-version-check openhands==${version}; fi",
        command=f"exec /opt/benchflow/openhands/bin/python -c '{_OPENHANDS}' \"$@\"",
    ),
    launch=Launch(
        arguments=("--headless", "--json", "--always-approve", "--override-with-envs"),
        env={
            "LLM_MODEL": f"openai/{_MODEL}",
            "LLM_BASE_URL": _URL,
            "LLM_API_KEY": f"${{{_KEY}}}",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENHANDS_SUPPRESS_BANNER": "1",
            "NO_COLOR": "1",
        },
    ),
    dialects=("openai-completions",),
    skill_paths=("$HOME/.agents/skills", "$WORKSPACE/.agents/skills"),
)

READY: Final[tuple[AgentDefinition, ...]] = (
    CLAUDE_CODE,
    CLAUDE_ACP,
    CODEX_CLI,
    CODEX_ACP,
    GEMINI,
    MINI,
    OPENCODE,
    OPENHANDS,
    PI,
    QWEN,
)
"""Every ready-made agent."""

"""Agents of the user's own: manifests in a folder, and packages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchflow_client.catalog.agents import AGENTS, find_agent
from benchflow_client.catalog.manifests import read_manifests
from benchflow_client.catalog.own_agents import own_agents
from benchflow_client.errors import AgentManifestError, UnknownAgentError
from benchflow_client.schema.agent_definition import InSandbox

WHOLE = """\
contract_version = "1.2"
name = "tinker"
version = "0.3"
description = "A tinkerer."
aliases = ["tk"]
install_cmd = "pip install tinker==${version}"
launch_cmd = "exec tinker acp"
install_timeout = 60
api_protocol = "openai-completions"
acp_model_format = "registered-provider/model"
requires_env = ["TINKER_KEY"]
env_mapping = {BENCHFLOW_PROVIDER_BASE_URL = "TINKER_URL"}
default_model = "gpt-5"
skill_paths = ["$HOME/.tinker/skills"]
home_dirs = [".tinker"]
of_a_later_version = true
"""


def manifest(folder: Path, text: str = WHOLE, name: str = "tinker") -> Path:
    (folder / name).mkdir(parents=True)
    file = folder / name / "manifest.toml"
    file.write_text(text)
    return folder


def test_a_manifest_describes_an_agent(tmp_path: Path) -> None:
    entry = read_manifests(manifest(tmp_path))["tinker"]

    made = entry.definition
    assert made is not None
    assert (entry.kind, made.version, made.default_model, made.dialects) == (
        "acp",
        "0.3",
        "gpt-5",
        ("openai-completions",),
    )
    assert made.install == InSandbox(
        script="pip install tinker==${version}", command="exec tinker acp", timeout_s=60
    )
    assert made.launch.env == {"TINKER_URL": "${BENCHFLOW_PROVIDER_BASE_URL}"}
    assert (made.model_by_protocol, made.model_format) == (True, "provider/model")
    assert (made.requires_env, made.skill_paths) == (("TINKER_KEY",), ("$HOME/.tinker/skills",))


def test_an_own_agent_is_found_by_name_and_alias(tmp_path: Path) -> None:
    own = own_agents(manifest(tmp_path))

    assert find_agent("tinker", own) is own["tinker"]
    assert find_agent("tk", own) is own["tinker"]
    with pytest.raises(UnknownAgentError, match="tinkr") as caught:
        find_agent("tinkr", own)
    assert "'tinker'" in caught.value.hint


def test_a_file_of_the_agents_name_is_a_manifest_too(tmp_path: Path) -> None:
    (tmp_path / "tinker.toml").write_text(WHOLE)
    (tmp_path / "README.md").write_text("no agent")

    assert list(read_manifests(tmp_path)) == ["tinker"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (WHOLE.replace('"1.2"', '"2.0"'), "contract_version"),
        (WHOLE.replace('name = "tinker"\n', ""), "name: Field required"),
        (WHOLE.replace('"exec tinker acp"', '""'), "launch_cmd"),
        (WHOLE.replace('"tinker"\n', '"Tink er"\n'), "name"),
        (WHOLE.replace("install_timeout = 60", "install_timeout = -1"), "install_timeout"),
        (WHOLE.replace('"tinker"\n', '"oracle"\n'), "'oracle' is another agent's"),
        (WHOLE.replace('["tk"]', '["codex"]'), "'codex' is another agent's"),
        ("name = ", "cannot be read"),
    ],
)
def test_a_wrong_manifest_is_refused_with_its_place(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(AgentManifestError, match=reason) as caught:
        read_manifests(manifest(tmp_path, text))

    assert str(tmp_path) in caught.value.message


def test_two_agents_of_one_name_are_refused(tmp_path: Path) -> None:
    manifest(tmp_path, name="a")

    with pytest.raises(AgentManifestError, match="'tinker' is another agent's"):
        read_manifests(manifest(tmp_path, name="b"))


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentManifestError, match="nowhere") as caught:
        own_agents(tmp_path / "nowhere")

    assert "BENCHFLOW_AGENTS_DIR" in caught.value.hint


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on the path of imports for a package with entry points."""
    monkeypatch.syspath_prepend(tmp_path)
    yield_from = [name for name in sys.modules if name.startswith("of_somebody_")]
    for name in yield_from:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def install(folder: Path, module: str, source: str, points: str) -> None:
    (folder / f"{module}.py").write_text(source)
    info = folder / f"{module}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[benchflow.agents]\n{points}\n")


SOURCE = """\
from benchflow_client.schema.agent_definition import AgentDefinition, InSandbox
one = AgentDefinition(name="one", install=InSandbox(script="true", command="one"))
def several():
    return [one.model_copy(update={"name": "two"}), one.model_copy(update={"name": "codex-cli", "version": "9"})]
def broken():
    raise RuntimeError("no licence")
def leaving():
    raise SystemExit("no time")
nothing = 3
"""


def test_packages_bring_agents_and_may_stand_in_for_others(
    package: Path, caplog: pytest.LogCaptureFixture
) -> None:
    points = "a = of_somebody_a:one\nb = of_somebody_a:several\nc = of_somebody_a:broken\nd = of_somebody_a:nothing\n"
    points += "e = of_somebody_a:leaving"
    install(package, "of_somebody_a", SOURCE, points)

    own = own_agents(None)

    assert sorted(own) == ["codex-cli", "one", "two"]
    replaced = find_agent("codex-cli", own).definition
    assert replaced is not None
    assert (replaced.version, AGENTS["codex-cli"].definition == replaced) == ("9", False)
    assert "no licence" in caplog.text
    assert "no time" in caplog.text
    assert "int, not AgentDefinition" in caplog.text

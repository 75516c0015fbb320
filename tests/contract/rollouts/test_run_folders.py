"""Where tools of the tests keep what they fetch: a folder of this run, with what the image brought."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from benchflow_client.schema.task import Task
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox
from benchflow_workers.verifiers.base import VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
MakeTask = Callable[..., Task]

NAMES = (
    "UV_CACHE_DIR",
    "UV_TOOL_DIR",
    "UV_PYTHON_INSTALL_DIR",
    "PIP_CACHE_DIR",
    "UV_CONFIG_FILE",
    "PIP_PREFIX",
)
SHOW = "".join(f'echo "{name}=${{{name}-unset}}"\n' for name in NAMES)
BROUGHT = (
    "mkdir -p /root/.cache/uv /root/.cache/pip /root/.config/uv; chmod 0755 /root /root/.cache; echo wheel "
    ">/root/.cache/uv/brought; chmod 0777 /root/.cache/pip; echo 'offline = true' >/root/.config/uv/uv.toml; "
)


async def variables(sandbox: Sandbox, task: Task, root: Path, script: str, **changes: Any) -> dict[str, str]:
    """Return what the tests see, and what a script of theirs prints, by name."""
    (root / "tests").mkdir(exist_ok=True)
    (root / "tests" / "test.sh").write_text(SHOW + script, encoding="utf-8")
    fields = {"env": {}, "timeout_s": 60.0, "setup_timeout_s": 120.0, "agent_user": None, **changes}
    run = await ScriptVerifier().run(sandbox, VerifyContext(task=task, task_dir=root, **fields))
    return dict(line.partition("=")[::2] for line in run.stdout.decode().splitlines())


async def test_tools_keep_what_they_fetch_in_a_folder_of_this_run_beside_what_the_image_brought(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    """Tests without network live on a warm cache; one that others could write is not taken for the image's."""
    await shell(sandbox, BROUGHT + "printf 'ID=\"debian\"\\n' >/etc/os-release")
    await prepare_user(sandbox, "agent", "/app", timeout_s=60)
    script = (
        'echo "brought=$(cat $UV_CACHE_DIR/brought)"; echo "uv=$(cat $UV_CONFIG_FILE)"; '
        'echo "mode=$(stat -c "%a %U" ${UV_CACHE_DIR%/*})"; [ -L $PIP_CACHE_DIR ] || echo pip=own\n'
    )

    seen = await variables(sandbox, make_task(), tmp_path, script, agent_user="agent")

    folder = seen["UV_CACHE_DIR"].removesuffix("/uv-cache")
    assert folder.startswith("/_benchflow_verifier_")
    assert [seen[name] for name in NAMES] == [
        f"{folder}/uv-cache", f"{folder}/uv-tools", f"{folder}/uv-python", f"{folder}/pip-cache", f"{folder}/uv.toml",
        "unset",
    ]  # fmt: skip
    assert (seen["mode"], seen["brought"], seen["uv"], seen["pip"]) == (
        "700 root",
        "wheel",
        "offline = true",
        "own",
    )


async def test_a_cache_that_an_agent_with_roots_rights_may_have_filled_is_left_behind(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await shell(sandbox, BROUGHT)
    script = (
        "ls $UV_CACHE_DIR >/dev/null 2>&1 || echo cache=none; [ -s $UV_CONFIG_FILE ] || echo config=empty\n"
    )

    seen = await variables(sandbox, make_task(), tmp_path, script, agent_user="root")

    assert (seen["cache"], seen["config"]) == ("none", "empty")


async def test_what_the_task_sets_itself_stays_and_images_of_fedora_get_a_prefix_for_pip(
    sandbox: Sandbox, make_task: MakeTask, tmp_path: Path, shell: Shell
) -> None:
    await shell(
        sandbox,
        'printf \'NAME="Rocky Linux"\\nID="rocky"\\nID_LIKE="rhel centos fedora"\\n\' >/etc/os-release',
    )

    seen = await variables(sandbox, make_task(), tmp_path, "", env={"UV_CACHE_DIR": "/mine"})
    own = await variables(sandbox, make_task(), tmp_path, "", env={"PIP_PREFIX": "/opt/pip"})

    assert (seen["UV_CACHE_DIR"], seen["PIP_PREFIX"], own["PIP_PREFIX"]) == (
        "/mine",
        "/usr/local",
        "/opt/pip",
    )
    assert seen["PIP_CACHE_DIR"] != own["PIP_CACHE_DIR"]

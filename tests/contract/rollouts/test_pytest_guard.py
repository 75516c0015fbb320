"""Plugins of pytest in a real session: an agent's are refused, all others are loaded, and a session has an end."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from benchflow_client.schema.task import Task
from benchflow_workers.agents.user import prepare_user
from benchflow_workers.sandbox.base import Sandbox, Upload
from benchflow_workers.verifiers.base import Verdict, VerifyContext
from benchflow_workers.verifiers.script import ScriptVerifier

Shell = Callable[..., Awaitable[str]]
Open = Callable[..., Awaitable[Sandbox]]
MakeTask = Callable[..., Task]

pytestmark = [pytest.mark.root, pytest.mark.parametrize("kind", ["local"], indirect=True)]

PACKAGES = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py")
SITE = "/opt/site"
HOUSE = "import house_rules\n\n\ndef pytest_addoption(parser):\n    parser.addoption('--house', action='store_true')\n"
WIN = "import os; open('/logs/verifier/reward.txt', 'w').write('1'); open('/tmp/ran', 'w'); os._exit(0)"
"""What a planted plugin does; the file in /tmp tells that it ran."""

TEST = "def test_answer():\n    assert open('/app/answer').read() == '42\\n'\n"
IMPORTS = "import answer\n\n\ndef test_answer():\n    assert answer.VALUE == 42\n"
REWARD = "sleep 0.3; if [ $code = 0 ]; then echo 1; else echo 0; fi >/logs/verifier/reward.txt\n"
RUN = "python3 -m pytest -q {options} /tests/test_answer.py; code=$?\n" + REWARD
DIST_INFO = (
    "mkdir {name}-99.dist-info; printf 'Name: {name}\\nVersion: 99\\n' >{name}-99.dist-info/METADATA; "
    "printf '[pytest11]\\n{name} = {module}\\n' >{name}-99.dist-info/entry_points.txt; echo \"$win\" >planted.py"
)


@dataclass
class Bench:
    """A sandbox whose image has pytest and a plugin, `house`, and a folder for tests."""

    sandbox: Sandbox
    shell: Shell
    make_task: MakeTask
    folder: Path
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    user: str | None = None

    async def plant(self, script: str) -> None:
        """Work as the agent: the right answer, and a script."""
        await prepare_user(self.sandbox, "agent", "/app", timeout_s=60)
        later = "while touch /tmp/late; ! find /tmp/late -newer /opt/benchflow/agent-started | grep -q .; do :; done\n"
        head = f'cd /app; echo 42 >answer; win="{WIN}"\n'
        await self.shell(self.sandbox, later + head + script, user="agent")

    async def verify(self, script: str, *, agent_user: str | None = "agent") -> tuple[Verdict, str]:
        """Run the tests; return the verdict and what they printed."""
        tests = self.folder / "tests"
        tests.mkdir(exist_ok=True)
        for name, text in {"test_answer.py": TEST, **self.files, "test.sh": script}.items():
            (tests / name).parent.mkdir(exist_ok=True)
            (tests / name).write_text(text, encoding="utf-8")
        task = self.make_task(verifier={"user": self.user, "pytest_plugins": ["house"]})
        context = VerifyContext(task, self.folder, self.env, 60.0, 120.0, agent_user)
        run = await ScriptVerifier().run(self.sandbox, context)
        logs = self.folder / "logs"
        shutil.rmtree(logs, ignore_errors=True)
        await self.sandbox.get("/logs/verifier", logs)
        return ScriptVerifier().judge(context, run, logs), run.stdout.decode()


@pytest.fixture
async def bench(open_sandbox: Open, shell: Shell, make_task: MakeTask, tmp_path: Path) -> Bench:
    site = tmp_path / "site"
    site.mkdir()
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        assert found is not None
        assert found.origin is not None
        origin = Path(found.origin)
        if origin.name == "__init__.py":
            shutil.copytree(origin.parent, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(origin, site / origin.name)
    declare(site / "house-1.dist-info", "house", "house_plugin")
    (site / "house_plugin.py").write_text(HOUSE)
    (site / "house_rules.py").write_text("")
    sandbox = await open_sandbox((Upload(SITE, source=site, mode=0o755),), {"PYTHONPATH": SITE})
    return Bench(sandbox, shell, make_task, tmp_path)


def declare(folder: Path, name: str, module: str) -> None:
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[pytest11]\n{name} = {module}\n")


def outcome(verdict: Verdict) -> tuple[float | str, tuple[str, ...]]:
    """Return the reward, or the code of what kept it away, and the warnings."""
    if verdict.failure is not None:
        return verdict.failure.code, tuple(verdict.warnings)
    return (verdict.rewards or {})["reward"], tuple(verdict.warnings)


async def test_plugins_of_the_image_the_task_and_the_tests_are_loaded_and_nothing_is_said(
    bench: Bench,
) -> None:
    """One stands in the workspace and imports what the agent changed there; one comes with the tests."""
    bench.user = "nobody"
    bench.files = {"theirs.py": "LOADED = 1\n", "conftest.py": "pytest_plugins = ['theirs', 'ours']\n"}
    await bench.shell(bench.sandbox, "cd /app; echo 'import other' >ours.py; echo x=1 >other.py")
    await bench.plant("echo x=2 >other.py")

    verdict, printed = await bench.verify(RUN.format(options="--house"))

    assert outcome(verdict) == (1.0, ()), printed


REFUSED: dict[str, tuple[str, list[str], dict[str, str], str]] = {
    "imported": ('echo "$win" >house_rules.py', ["--house"], {}, "house_rules.py"),  # before a session imports it
    "dist_info": (DIST_INFO.format(name="house", module="planted"), ["--house"], {}, "house-99.dist-info"),
    "of_a_trusted_module": (DIST_INFO.format(name="house", module="os"), [], {}, "house-99.dist-info"),
    "shadow": ('echo "$win" >house_plugin.py', ["--house"], {}, "house_plugin.py"),
    "named": ('echo "$win" >extra.py', ["-p", "extra"], {}, "extra.py"),
    "variable": ('echo "$win" >extra.py', [], {"PYTEST_PLUGINS": "extra"}, "extra.py"),
    "conftest": ('echo "$win" >extra.py', ["/tests/conftest"], {}, "extra.py"),
    "package": ('mkdir e; echo "$win" >e/__init__.py; : >e/p.py', ["-p", "e.p"], {}, "e/__init__.py"),
    "link": ('echo "$win" >note.txt; ln -s note.txt extra.py', ["-p", "extra"], {}, "extra.py"),
    "archive": (
        'echo "$win" >z.py; python3 -m zipfile -c e.zip z.py; rm z.py', ["-p", "z"], {"PATH_0": "e.zip"}, "e.zip/z.py",
    ),
    "home": (
        'mkdir -p ~/lib; echo "$win" >~/lib/h.py', ["-p", "h"], {"PATH_0": "/home/agent/lib"}, "/home/agent/lib/h.py",
    ),
}  # fmt: skip
"""What an agent plants in a folder of its own, options and variables of the session there, the file that is named."""

SESSIONS = """
import json, os, sys, pytest
for name, (_, options, variables, _) in json.load(open("/tests/cases.json")).items():
    os.chdir("/app/" + name)
    os.environ.update({"PYTEST_PLUGINS": "", "PATH_0": "", **variables})
    sys.path[:1] = [os.path.abspath(os.environ["PATH_0"])]
    print(name, int(pytest.main(["-q", "/tests/test_answer.py", *options])), flush=True)
"""
"""Every session is one of its own; a start of Python for each takes most of the time."""


async def test_a_plugin_the_agent_can_have_written_ends_the_session_before_it_runs(bench: Bench) -> None:
    bench.files = {
        "sessions.py": SESSIONS,
        "cases.json": json.dumps(REFUSED),
        "conftest/conftest.py": "pytest_plugins = ['extra']\n",
        "conftest/test_more.py": TEST,
    }
    plants = [f"mkdir /app/{name}; cd /app/{name}; {plant}\n" for name, (plant, *_) in REFUSED.items()]
    await bench.plant("HOME=/home/agent\n" + "".join(plants))

    verdict, printed = await bench.verify(f"python3 /tests/sessions.py; code=1; ls /tmp/ran\n{REWARD}")

    reward, warnings = outcome(verdict)
    lines = printed.splitlines()
    assert reward == 0.0, printed
    assert [name for name in REFUSED if f"{name} 4" not in lines] == [], printed
    assert "/tmp/ran" not in lines
    files = {warning.rpartition(" ")[2] for warning in warnings}
    assert files == {str(Path("/app", name, file)) for name, (*_, file) in REFUSED.items()}


async def test_a_package_the_agent_installed_is_left_out_where_tests_load_all_plugins(bench: Bench) -> None:
    """An honest agent may install what brings a plugin along; the tests go on without it."""
    bench.env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
    await bench.plant(DIST_INFO.format(name="brought", module="planted"))

    verdict, printed = await bench.verify(RUN.format(options="--house"))

    assert outcome(verdict) == (1.0, ()), printed


async def test_tests_that_drop_the_search_path_find_the_guard_all_the_same(bench: Bench) -> None:
    script = f"cd /; echo 42 >/app/answer; export PYTHONPATH={SITE}\n" + RUN.format(options="--house")

    verdict, printed = await bench.verify(script, agent_user=None)

    assert outcome(verdict) == (1.0, ()), printed
    assert "ended" in (bench.folder / "logs" / "pytest-guard.log").read_text()


async def test_a_guard_that_cannot_be_loaded_gives_no_verdict(bench: Bench) -> None:
    """The tests hide how they start Python, so nobody could know that they would not find it."""
    quiet = f"name=PYTHON; export ${{name}}PATH={SITE}; exec >/logs/verifier/log 2>&1\n"

    verdict, printed = await bench.verify(quiet + RUN.format(options=""), agent_user=None)

    assert outcome(verdict) == ("verifier.guard_failed", ()), printed


ENDINGS = {
    "at_once": "import posix; posix._exit(0)",
    "at_exit": "import atexit, os; atexit.register(os._exit, 0); raise SystemExit(0)",
}


async def test_what_the_tests_import_cannot_end_them_as_a_success(bench: Bench) -> None:
    bench.files = {"test_answer.py": IMPORTS}
    plants = [f'mkdir {name}; echo "{text}" >{name}/answer.py\n' for name, text in ENDINGS.items()]
    runs = [f"(cd {name}; python3 -m pytest -q /tests/test_answer.py; echo {name} $?)\n" for name in ENDINGS]
    await bench.plant("".join(plants))

    verdict, printed = await bench.verify(f"{''.join(runs)}code=1\n{REWARD}")

    assert [f"{name} 0" for name in ENDINGS if f"{name} 0" in printed.splitlines()] == []
    assert outcome(verdict) == (
        0.0,
        ("something that ran in a session of pytest tried to end it early as a success",),
    )


async def test_a_full_reward_of_a_session_that_was_replaced_is_no_verdict(bench: Bench) -> None:
    bench.files = {"test_answer.py": IMPORTS}
    await bench.plant("echo \"import os; os.execv('/bin/true', ['true'])\" >answer.py")

    verdict, printed = await bench.verify(RUN.format(options=""))

    assert outcome(verdict) == ("verifier.session_broken_off", ()), printed


async def test_tests_without_pytest_get_no_guard(bench: Bench) -> None:
    bench.files = {"test_answer.py": ""}
    script = "echo $PYTHONPATH; ls -d /_benchflow_guard*; echo 1 >/logs/verifier/reward.txt\n"

    verdict, printed = await bench.verify(script, agent_user=None)

    assert outcome(verdict) == (1.0, ())
    assert printed.splitlines()[0] == SITE
    assert "No such file" in printed.splitlines()[1]

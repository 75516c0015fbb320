"""Everything a rollout needs is resolved before any sandbox exists, or the trial ends here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchflow_client.errors import AgentError, SandboxError, TrialError
from benchflow_client.schema.ids import short_digest
from benchflow_workers.trial.prepare import SETUP_TIMEOUT_S, prepare, scaled
from tests.worlds import TurnAgent, World

MakeWorld = Callable[..., World]


def test_sandbox_carries_whom_it_belongs_to(world: World) -> None:
    attempt = world.attempt(fence=7)

    spec = prepare(attempt, world.parts).sandbox

    assert spec.labels == {
        "bf.fleet": "tests",
        "bf.job": world.plan.job,
        "bf.trial": f"{world.plan.job}.fix-build.solver.1",
        "bf.index": "0",
        "bf.fence": "7",
        "bf.worker": "box/1",
    }
    assert spec.name == f"bf-fix-build-{short_digest(attempt.trial.id, attempt.folder)}"
    assert spec.name != prepare(world.attempt(fence=8), world.parts).sandbox.name


def test_task_says_how_large_the_sandbox_is(make: MakeWorld) -> None:
    world = make(
        toml='[environment]\ncpus = 2\nmemory_mb = 512\nworkdir = "/srv"\nnetwork_mode = "no-network"\n'
    )

    spec = prepare(world.attempt(), world.parts).sandbox

    assert (spec.cpus, spec.memory_mb, spec.workdir, spec.network) == (2.0, 512, "/srv", "no-network")
    assert spec.image is None
    assert (spec.build_context / "Dockerfile").is_file()


def test_ready_image_is_not_built(make: MakeWorld) -> None:
    spec = prepare(*_of(make(toml='[environment]\ndocker_image = "debian:bookworm-slim"\n'))).sandbox

    assert (spec.image, spec.build_context) == ("debian:bookworm-slim", None)


def test_logs_and_prompt_are_placed_before_what_the_agent_needs(make: MakeWorld) -> None:
    spec = prepare(*_of(make(toml='[agent]\nprompt_prefix = "Be brief."\n'))).sandbox

    targets = {upload.target: upload for upload in spec.uploads}
    assert list(targets) == [
        "/logs",
        "/logs/agent",
        "/logs/verifier",
        "/logs/artifacts",
        "/instruction.md",
        "/opt/agent",
    ]
    assert targets["/instruction.md"].content == b"Be brief.\n\nMake the build pass.\n"
    assert targets["/logs/verifier"].mode == 0o777


def test_every_timeout_a_task_declares_is_scaled(make: MakeWorld) -> None:
    toml = "[agent]\ntimeout_sec = 10\n[verifier]\ntimeout_sec = 20\n[environment]\nbuild_timeout_sec = 30\n"
    prepared = prepare(*_of(make(toml=toml, timeout_multiplier=3.0)))

    assert prepared.agent_context.timeout_s == 30.0
    assert prepared.verify_context.timeout_s == 60.0
    assert prepared.sandbox.build_timeout_s == 90.0
    assert prepared.verify_context.setup_timeout_s == 3 * SETUP_TIMEOUT_S


def test_short_timeouts_do_not_shorten_preparation(make: MakeWorld) -> None:
    prepared = prepare(*_of(make(toml="[verifier]\ntimeout_sec = 20\n", timeout_multiplier=0.5)))

    assert prepared.verify_context.timeout_s == 10.0
    assert prepared.verify_context.setup_timeout_s == SETUP_TIMEOUT_S


def test_timeout_of_the_job_beats_that_of_the_task(make: MakeWorld) -> None:
    world = make(toml="[agent]\ntimeout_sec = 10\n", agent_spec={"timeout_s": 4.0}, timeout_multiplier=2.0)

    assert prepare(*_of(world)).agent_context.timeout_s == 8.0


def test_no_timeout_stays_none() -> None:
    assert scaled(None, 3.0) is None


@pytest.mark.parametrize(
    ("toml", "place"),
    [
        ('[environment.env]\nKEY = "${NOT_SET}"\n', "environment.env.KEY"),
        ('[solution.env]\nKEY = "${NOT_SET}"\n', "solution.env.KEY"),
        ('[verifier.env]\nKEY = "${NOT_SET}"\n', "verifier.env.KEY"),
    ],
)
def test_variable_a_task_needs_and_the_worker_lacks_ends_the_trial_here(
    make: MakeWorld, toml: str, place: str
) -> None:
    world = make(toml=toml)

    with pytest.raises(AgentError) as caught:
        prepare(world.attempt(), world.parts)

    assert caught.value.code == "agent.env_missing"
    assert place in caught.value.message


def test_variables_are_resolved_for_the_side_that_needs_them(make: MakeWorld) -> None:
    toml = (
        '[environment.env]\nA_TOKEN = "${T:-default-token}"\n'
        '[solution.env]\nB_KEY = "${K}"\n'
        '[verifier.env]\nC = "${C}"\n'
        '[[environment.setup_commands]]\ncommand = "true"\n[environment.setup_commands.env]\nD_SECRET = "${D}"\n'
    )
    world = make(toml=toml, agent_spec={"env": ("PLAIN",)})
    world.environ.update(K="value-of-k", C="value-of-c", D="value-of-d", PLAIN="value-of-plain")

    prepared = prepare(world.attempt(), world.parts)

    assert prepared.sandbox.env == {"A_TOKEN": "default-token"}
    assert prepared.agent_context.oracle_env == {"B_KEY": "value-of-k"}
    assert prepared.agent_context.env == {"PLAIN": "value-of-plain"}
    assert prepared.verify_context.env == {"C": "value-of-c"}
    assert prepared.setup_env == ({"D_SECRET": "value-of-d"},)
    assert prepared.secrets == {"default-token", "value-of-k", "value-of-d", "value-of-plain"}


@pytest.mark.parametrize(
    ("toml", "runs_as_user", "agent_user", "verifier_stops"),
    [
        ("", False, "root", None),
        ("", True, "agent", "agent"),
        ('[agent]\nuser = "dev"\n', True, "dev", "dev"),
        ("[agent]\nuser = 1001\n", True, "1001", "1001"),
        ("[agent]\nuser = 0\n", True, "0", "0"),
    ],
)
def test_agent_runs_as_the_user_of_the_task_or_the_job(
    make: MakeWorld, toml: str, runs_as_user: bool, agent_user: str, verifier_stops: str | None
) -> None:
    prepared = prepare(*_of(make(toml=toml, agent=TurnAgent(runs_as_user=runs_as_user))))

    assert prepared.agent_context.user == agent_user
    assert prepared.verify_context.agent_user == verifier_stops


def test_task_that_needs_what_the_sandbox_lacks_is_not_started(make: MakeWorld) -> None:
    world = make(toml="[environment]\ngpus = 1\n")

    with pytest.raises(SandboxError) as caught:
        prepare(world.attempt(), world.parts)

    assert caught.value.code == "task.unsupported"
    assert "gpu" in caught.value.message.lower()
    assert "'fix-build'" in caught.value.message


def test_bundle_that_is_gone_is_named(world: World) -> None:
    world.store.delete_tree(".bundles/")

    with pytest.raises(TrialError) as caught:
        prepare(world.attempt(), world.parts)

    assert caught.value.code == "store.bundle_missing"


def _of(world: World) -> tuple[object, object]:
    return world.attempt(), world.parts

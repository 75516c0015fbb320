"""The gate names every reason before anything is started."""

from __future__ import annotations

import pytest

from benchflow_client.tasks.gate import unsupported
from benchflow_client.tasks.read import read_task

ALL_NETWORKS = frozenset({"public", "no-network", "allowlist", "denylist"})


def reasons(folder, *, networks=ALL_NETWORKS, has_compose=False, has_gpus=False) -> tuple[str, ...]:
    return unsupported(read_task(folder), networks=networks, has_compose=has_compose, has_gpus=has_gpus)


def test_plain_task_has_no_reason(make_task):
    assert reasons(make_task(), networks=frozenset({"public"})) == ()


def test_setup_commands_healthcheck_and_artifacts_of_the_main_service_are_supported(make_task):
    config = """
artifacts = ["/app/out"]
[environment]
healthcheck = {command = "true"}
setup_commands = [{command = "true", cwd = "/app", env = {A = "b"}, user = "root"}]
"""
    assert reasons(make_task({"task.toml": config})) == ()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('artifacts = [{source = "/x", service = "db"}]', "artifacts[0].service: the task has no service 'db'; it has main"),
        ('[environment]\nos = "windows"', "sandbox.os: windows is not run; only linux is"),
        ("[environment]\ngpus = 2", "sandbox.gpus: 2 asked for, and this sandbox has none"),
        ("[environment.tpu]\ntype = 'v5'", "sandbox.tpu: no sandbox has TPUs"),
        ('[environment]\nbugswarm_image_tag = "x"', "sandbox.bugswarm_image_tag: BugSwarm images are not fetched by this version"),
        ('[environment]\nnetwork_mode = "no-network"\n[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]', "agent.network_mode: an allowlist does not go together with the sandbox's 'no-network'"),
        ('[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]', "verifier.network_mode: the tests' network is never filtered by a list"),
        ('[[environment.setup_commands]]\ncommand = "x"\nservice = "db"', "sandbox.setup_commands[0].service: the task has no service 'db'; it has main"),
        ('[[environment.setup_commands]]\ncommand = "x"\ncapture_dir_b64_env = "A"', "sandbox.setup_commands[0].capture_dir_b64_env: capture_dir does not say what it is given"),
        ('[[environment.setup_commands]]\ncommand = "x"\ncapture_dir = "/a"\ncapture_dir_b64_env_file_var = "A-B"', "sandbox.setup_commands[0].capture_dir_b64_env_file_var: 'A-B' is no name of a variable"),
        ('[verifier]\ntype = "llm-judge"', "verifier.type: 'llm-judge' is not run by this version; only test-script is"),
        ('[verifier]\nenvironment_mode = "separate"\nhardening = {restore_workspace = true}', "verifier.hardening.restore_workspace: a sandbox of the tests' own gets the workspace and no answer that is elsewhere"),
        ('[verifier.environment]\nworkdir = "/x"', "verifier.sandbox.workdir: the tests run where the agent worked; set sandbox.workdir"),
        ('[verifier.environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]', "verifier.sandbox.network_mode: the tests' network is never filtered by a list"),
        ('[verifier.environment]\nhealthcheck = {command = "true"}', "verifier.sandbox.healthcheck: a sandbox of the tests' own has none"),
        ('[verifier]\nservice = "db"', "verifier.service: the task has no service 'db'; it has main"),
        ('[[verifier.collect]]\ncommand = "x"', "verifier.collect: these commands are not run by this version, and the verdict may need them"),
        ('[verifier.memory]\nexpected_skills = ["a"]', "verifier.memory: skill memory is not scored by this version"),
    ],
)  # fmt: skip
def test_what_is_not_run_is_a_reason_with_its_key(make_task, config, reason):
    assert reasons(make_task({"task.toml": config})) == (reason,)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("", ()),
        ('[steps.verifier]\ntype = "llm-judge"', ("steps[0].verifier.type: 'llm-judge' is not run by this version; only test-script is",)),
        ('[steps.verifier]\nnetwork_mode = "denylist"', ("steps[0].verifier.network_mode: the tests' network is never filtered by a list",)),
        ("verifier = {hardening = {restore_workspace = true}}", ("steps[0].verifier.hardening.restore_workspace: it would undo the steps before",)),
        ('artifacts = [{source = "/x", service = "db"}]', ("steps[0].artifacts[0].service: the task has no service 'db'; it has main",)),
    ],
)  # fmt: skip
def test_what_a_step_asks_for_is_a_reason_with_its_number(make_task, config, expected):
    folder = make_task({
        "task.toml": f'[[steps]]\nname = "a"\n{config}\n[[steps]]\nname = "b"\n',
        "steps/a/instruction.md": "Do a.\n",
        "steps/b/instruction.md": "Do b.\n",
    })

    assert reasons(folder) == expected


@pytest.mark.parametrize(
    "config", ['[verifier]\nenvironment_mode = "separate"', "[verifier.environment]\ncpus = 1"]
)
def test_tests_in_a_sandbox_of_their_own_are_supported(make_task, config):
    assert reasons(make_task({"task.toml": config})) == ()


def test_tests_of_a_step_in_a_sandbox_of_their_own_are_a_reason(make_task):
    folder = make_task({
        "task.toml": '[[steps]]\nname = "a"\nverifier = {environment_mode = "separate"}\n',
        "steps/a/instruction.md": "Do a.\n",
    })

    assert "steps[0].verifier.sandbox: the tests of a step run where its agent worked" in reasons(folder)


def test_network_the_sandbox_does_not_enforce_is_a_reason(make_task):
    folder = make_task({"task.toml": '[environment]\nnetwork_mode = "denylist"\nblocked_hosts = ["a.org"]\n'})

    assert reasons(folder, networks=frozenset({"public", "no-network"})) == (
        "sandbox.network_mode: this sandbox does not enforce 'denylist' on this host; it enforces no-network, public",
    )


def test_abilities_of_the_sandbox_lift_reasons(make_task):
    folder = make_task({
        "task.toml": "[environment]\ngpus = 1\n",
        "environment/docker-compose.yaml": "services: {}\n",
    })

    assert reasons(folder) == (
        "environment/docker-compose.yaml: this sandbox runs no services beside the main one",
        "sandbox.gpus: 1 asked for, and this sandbox has none",
    )
    assert reasons(folder, has_compose=True, has_gpus=True) == ()


@pytest.mark.parametrize(
    ("yaml", "keys"),
    [
        ("profile: multi-agent", []),
        ("user: {model: scripted}", []),
        ("benchflow: {nudges: {mode: x}, teams: [1]}", ["benchflow.teams"]),
        ("benchflow: {agent_policy: {a: 1}, runtime_policy: {a: 1}}", ["benchflow.agent_policy", "benchflow.runtime_policy"]),
        ("verifier: verifier/other.sh", ["benchflow.verifier"]),
        ("benchflow: {verifier: {path: verifier, spec: x}}", ["benchflow.verifier"]),
        ("benchflow: {verifier: [1]}", ["benchflow.verifier"]),
        ("verifier: ./verifier/", []),
        ("benchflow: {prompt: {composition: append}}", []),
    ],
)  # fmt: skip
def test_document_features_are_reasons(make_document, yaml, keys):
    found = reasons(make_document(f"---\n{yaml}\n---\nDo it.\n"))

    assert [reason.partition(": ")[0] for reason in found] == keys


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        ("{type: script, command: ./test.sh}", ""),
        ("{}", ""),
        ("{command: python -m checks --fast}", ""),
        ("{type: reward_kit, root: kit, criteria: kit/criteria.toml}", ""),
        ("{command: 3}", "command = 3: expected a command line"),
        ("{command: \"a 'b\"}", "command = \"a 'b\": expected a command line"),
        ("{command: /bin/true}", "command '/bin/true': expected a path below the verifier's folder"),
        ("{command: ../x.sh}", "command '../x.sh': expected a path below the verifier's folder"),
        ("{type: reward-kit, root: /kit}", "root = '/kit': expected a path below the verifier's folder"),
        ("{type: reward-kit, entrypoint: 3}", "entrypoint = 3: expected a path below the verifier's folder"),
        ("{type: llm-judge}", "llm-judge is not run by this version; only script and reward-kit are"),
        ("{type: guess}", "'guess' is no type; only script and reward-kit are"),
    ],
)  # fmt: skip
def test_a_strategy_runs_a_program_of_the_verifiers_folder_or_says_why_not(make_document, strategy, reason):
    document = f"---\nverifier: {{strategies: {{main: {strategy}}}}}\n---\n"

    found = reasons(make_document("---\nversion: '1.3'\n---\nDo it.\n", {"verifier/verifier.md": document}))

    assert found == ((f"verifier/verifier.md: strategy 'main': {reason}",) if reason else ())


CHANGING = {
    "agent": '[agent]\nnetwork_mode = "no-network"',
    "verifier": '[environment]\nnetwork_mode = "no-network"\n[verifier]\nnetwork_mode = "public"',
}


@pytest.mark.parametrize("toml", [CHANGING["agent"], CHANGING["verifier"]], ids=["agent", "verifier"])
def test_network_may_change_between_phases_where_lists_are_enforced(make_task, toml):
    assert reasons(make_task({"task.toml": f"{toml}\n"})) == ()


@pytest.mark.parametrize(
    ("toml", "start"),
    [
        (CHANGING["agent"], "agent.network_mode: 'no-network' differs from the sandbox's 'public'"),
        (CHANGING["verifier"], "verifier.network_mode: 'public' differs from the sandbox's 'no-network'"),
    ],
    ids=["agent", "verifier"],
)
def test_network_that_differs_is_a_reason_where_it_cannot_change(make_task, toml, start):
    folder = make_task({"task.toml": f"{toml}\n"})

    assert reasons(folder, networks=frozenset({"public", "no-network"})) == (
        f"{start}, and a network stays as it started on this host",
    )


def test_agents_list_the_sandbox_does_not_enforce_is_a_reason(make_task):
    folder = make_task({"task.toml": '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]\n'})

    assert reasons(folder, networks=frozenset({"public", "no-network"})) == (
        "agent.network_mode: this sandbox does not enforce 'allowlist' on this host; it enforces no-network, public",
    )


@pytest.mark.parametrize(
    "toml",
    [
        '[environment]\nnetwork_mode = "denylist"\nblocked_hosts = ["a.org"]\nblocked_urls = ["https://b.org/x"]',
        '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a.org"]',
        CHANGING["agent"],
    ],
)
def test_network_of_a_sandbox_with_services_changes_as_that_of_any_other(make_task, toml):
    compose = "services:\n  main: {}\n"
    folder = make_task({"task.toml": f"{toml}\n", "environment/docker-compose.yaml": compose})

    assert reasons(folder, has_compose=True) == ()
    assert reasons(folder, has_compose=True, networks=frozenset({"public"})) != ()


def test_tests_in_a_service_that_nothing_can_be_placed_in_are_a_reason(make_task):
    folder = make_task({
        "task.toml": '[verifier]\nservice = "db"\n',
        "environment/docker-compose.yaml": "services: {db: {image: x, read_only: true}}\n",
    })

    assert reasons(folder, has_compose=True) == (
        "verifier.service: 'db' is read_only, so no tests can be placed in it",
    )


@pytest.mark.parametrize("own", ["", "[verifier.environment]\ncpus = 1\n"])
def test_services_do_not_run_beside_tests_in_a_sandbox_of_their_own_unless_the_task_says_what_they_need(
    make_task, own
):
    manifest = (
        '[environment]\nname = "n"\n[[environment.services]]\nname = "n"\ncommand = "serve"\nport = 9001\n'
    )
    toml = own or '[verifier]\nenvironment_mode = "separate"\n'
    beside = make_task({"task.toml": toml, "environment.toml": manifest})

    why = "its services do not run beside tests in a sandbox of their own; declare verifier.sandbox"
    assert reasons(beside) == (() if own else (f"environment manifest: {why}",))

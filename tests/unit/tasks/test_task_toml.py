"""task.toml: numbers, both spellings, unknown keys, and the line of each problem."""

from __future__ import annotations

import pytest

from benchflow_client.errors import TaskError
from benchflow_client.tasks.read import read_task


def problems_of(folder) -> tuple[str, ...]:
    with pytest.raises(TaskError) as caught:
        read_task(folder)
    return caught.value.problems


@pytest.mark.parametrize("value", ["0.5", "1814400", "30", "30.0"])
def test_any_positive_finite_timeout_is_valid(make_task, value):
    task = read_task(make_task({"task.toml": f"[agent]\ntimeout_sec = {value}\n"}))

    assert task.config.agent.timeout_sec == float(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('"five"', "expected a number of seconds"),
        ('"60"', "expected a number of seconds; remove the quotes"),
        ("true", "expected a number of seconds"),
        ("[1]", "expected a number of seconds"),
        ("0", "expected more than 0 seconds"),
        ("-1", "expected more than 0 seconds"),
        ("nan", "expected a finite number of seconds"),
        ("inf", "expected a finite number of seconds"),
        ("-inf", "expected a finite number of seconds"),
        ("1e12", "expected at most 3.15576e+08 seconds"),
    ],
)
def test_bad_timeout_is_refused_with_its_line(make_task, value, reason):
    (problem,) = problems_of(make_task({"task.toml": f'version = "1.0"\n[agent]\ntimeout_sec = {value}\n'}))

    assert problem.startswith("task.toml, line 3: agent.timeout_sec")
    assert problem.endswith(f": {reason}")


def test_number_no_float_can_hold_is_refused(make_task):
    (problem,) = problems_of(make_task({"task.toml": f"[agent]\ntimeout_sec = {'9' * 400}\n"}))

    assert problem.endswith("the number is too large")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("memory_mb = 0", "expected more than 0"),
        ("memory_mb = 1.5", "expected a whole number"),
        ('gpus = "1"', "expected a whole number; remove the quotes"),
        ("gpus = true", "expected a whole number"),
        ('os = "beos"', "expected 'linux' or 'windows'"),
        ('workdir = "app"', "expected an absolute path without '..'"),
        ('workdir = "/"', "expected a folder below /"),
        ("docker_image = 3", "expected text in quotes"),
        ('docker_image = "a b"', "does not match ^[A-Za-z0-9][A-Za-z0-9._/:@+-]*$"),
        ('allowed_hosts = ["a.org"]', 'needs network_mode = "allowlist"'),
        ('blocked_hosts = ["a.org"]', 'needs network_mode = "denylist"'),
        ("env = {A = 1}", "expected text in quotes"),
        ("env = 3", "expected a table"),
        ('env = {"A=B" = "x"}', "expected a variable name: not empty, no '='"),
        ('env = {A = "\\u0000"}', "a NUL character cannot be passed on"),
        ('gpu_types = "H100"', "expected a list"),
        ('mcp_servers = [{name = "x", transport = "stdio"}]', "transport stdio needs a command"),
        ('mcp_servers = [{transport = "stdio", command = "x"}]', "is missing"),
        ('memory = "2X"', 'expected a size such as "2G" or "512M"'),
        ("memory = 2", 'expected a size such as "2G" or "512M"'),
        ('memory = "1K"', 'expected a size such as "2G" or "512M"'),
        ("allow_internet = 1", "expected true or false"),
        ('setup_commands = [{command = "x", cwd = "rel"}]', "expected an absolute path without '..'"),
    ],
)
def test_wrong_sandbox_key_is_refused_in_the_authors_spelling(make_task, line, reason):
    (problem,) = problems_of(make_task({"task.toml": f"[environment]\n{line}\n"}))

    assert problem.startswith("task.toml, line 2: environment.")
    assert problem.endswith(f": {reason}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("reward_range = [0.5, 1]", "expected [lo, hi] with lo <= 0 and hi >= 1"),
        ('submission_files = ["/tests/x"]', "nothing below /dev, /logs, /proc, /solution, /sys, /tests can be kept"),
        ('submission_files = ["/a"]\nworkspace_recovery = true', "workspace_recovery keeps the whole workspace; give one of the two"),
        (f"submission_files = {[f'/f{i}' for i in range(9)]}", "at most 8 paths of 512 characters"),
        ("user = true", "expected a user name or a numeric id"),
        ("user = -1", "expected a user name or a numeric id"),
        ("hardening = {cleanup_conftests = 1}", "expected true or false"),
        ('allowed_hosts = ["x"]', 'needs network_mode = "allowlist"'),
    ],
)  # fmt: skip
def test_wrong_verifier_key_is_refused(make_task, line, reason):
    (problem,) = problems_of(make_task({"task.toml": f"[verifier]\n{line}\n"}))

    assert problem.endswith(f": {reason}")


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ('[agent]\nnetwork_mode = "denylist"', "a denylist belongs to the sandbox, not to one phase"),
        ('[task]\nname = "foo"', "expected org/name of letters, digits, '.', '_' and '-', without '..'"),
        ('[task]\nname = "a/b..c"', "expected org/name of letters, digits, '.', '_' and '-', without '..'"),
        ('artifacts = [{source = "/a", destination = "../b"}]', "expected a path below artifacts/, without '..'"),
        ('[environment]\nnetwork_mode = "denylist"\nblocked_hosts = ["10.0.0.1"]', "expected a host name, not an address or a URL"),
        ('[environment]\nnetwork_mode = "denylist"\nblocked_urls = ["ftp://a.org"]', "expected an http or https URL with a host name"),
        ('[environment]\nnetwork_mode = "denylist"\nblocked_urls = ["http://a.org:8080/x"]', "a blocked URL has no port and no user"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a b"]', "expected a host, *.host, an IP address or a CIDR block"),
        ('[agent]\nnetwork_mode = "allowlist"', 'network_mode = "allowlist" needs at least one host'),
        ("agent = 3", "expected a table"),
        ('steps = "x"', "expected a list"),
    ],
)  # fmt: skip
def test_other_wrong_keys_are_refused(make_task, config, reason):
    (problem,) = problems_of(make_task({"task.toml": config}))

    assert problem.endswith(f": {reason}")


def test_blocked_url_loses_its_query(make_task):
    config = '[environment]\nnetwork_mode = "denylist"\nblocked_urls = ["https://a.org/x?y=1"]\n'

    assert read_task(make_task({"task.toml": config})).config.sandbox.blocked_urls == ("https://a.org/x",)


def test_old_text_sizes_are_converted_with_a_warning(make_task):
    task = read_task(make_task({"task.toml": '[environment]\nmemory = "2G"\nstorage = "512M"\ncpus = "2"\n'}))

    assert (task.config.sandbox.memory_mb, task.config.sandbox.storage_mb, task.config.sandbox.cpus) == (
        2048,
        512,
        2.0,
    )
    assert task.warnings == (
        'task.toml, line 2: environment.memory = "2G": is an old spelling; write memory_mb = 2048',
        'task.toml, line 3: environment.storage = "512M": is an old spelling; write storage_mb = 512',
        'task.toml, line 4: environment.cpus = "2": write 2 without quotes',
    )


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ('version = "1.0"\nschema_version = "1.0"', "task.toml, line 1: version: is another spelling of schema_version; give one of the two"),
        ("[sandbox]\n[environment]", "task.toml, line 2: environment: is another spelling of sandbox; give one of the two"),
        ("[oracle]\n[solution]", "task.toml, line 2: solution: is another spelling of oracle; give one of the two"),
        ('[environment]\nmemory = "1G"\nmemory_mb = 1024', "task.toml, line 2: environment.memory: is another spelling of memory_mb; give one of the two"),
        ("[verifier.environment]\n[verifier.sandbox]", "task.toml, line 1: verifier.environment: is another spelling of sandbox; give one of the two"),
        ('[verifier]\nenvironment_mode = "shared"\nsandbox_mode = "shared"', "task.toml, line 2: verifier.environment_mode: is another spelling of sandbox_mode; give one of the two"),
        ('[[steps]]\nname = "a"\n[steps.verifier]\nsandbox = {}\nenvironment = {}', "task.toml, line 5: steps[0].verifier.environment: is another spelling of sandbox; give one of the two"),
        ('[environment]\nallow_internet = true\nnetwork_mode = "no-network"', 'task.toml, line 2: environment.allow_internet = true: contradicts network_mode = "no-network"; give one of the two'),
    ],
)  # fmt: skip
def test_two_spellings_of_one_key_are_a_problem(make_task, config, problem):
    folder = make_task({"task.toml": config, "steps/a/instruction.md": "Do a.\n"})

    assert problems_of(folder) == (problem,)


def test_harbor_names_mean_what_ours_mean(make_task):
    config = """
[environment]
allow_internet = false
image = "debian:12"
[verifier]
environment_mode = "separate"
[verifier.environment]
cpus = 2
[[steps]]
name = "a"
[steps.verifier]
environment_mode = "separate"
[solution]
TOKEN = "x"
env = {OTHER = "y"}
"""
    task = read_task(make_task({"task.toml": config, "steps/a/instruction.md": "Do a.\n"}))

    assert task.config.sandbox.network_mode == "no-network"
    assert task.config.sandbox.docker_image == "debian:12"
    assert task.config.verifier.sandbox_mode == "separate"
    assert task.config.verifier.sandbox is not None
    assert task.config.verifier.sandbox.cpus == 2
    assert task.config.steps == ({"name": "a", "verifier": {"sandbox_mode": "separate"}},)
    assert task.config.oracle.env == {"TOKEN": "x", "OTHER": "y"}
    assert task.ignored_keys == ()


def test_one_variable_with_two_values_is_a_problem(make_task):
    folder = make_task({"task.toml": '[solution]\nTOKEN = "x"\nenv = {TOKEN = "y"}\n'})

    assert problems_of(folder) == (
        "task.toml, line 2: solution.TOKEN: contradicts the same variable in env; give one",
    )


def test_unknown_keys_are_ignored_kept_and_warned_about(make_task):
    config = '[agent]\ntimeout_secs = 5\n[verifer]\ntimeout_sec = 5\n[environment]\nzebra = 1\n[metadata]\nany = "x"\n'

    task = read_task(make_task({"task.toml": config}))

    assert task.ignored_keys == ("agent.timeout_secs", "environment.zebra", "verifer")
    assert task.warnings == (
        "task.toml, line 2: agent.timeout_secs: unknown key, ignored; did you mean 'timeout_sec'?",
        "task.toml, line 6: environment.zebra: unknown key, ignored",
        "task.toml, line 3: verifer: unknown key, ignored; did you mean 'verifier'?",
    )
    assert task.config.agent.timeout_sec is None


def test_near_miss_of_environment_is_suggested_in_that_spelling(make_task):
    task = read_task(make_task({"task.toml": "[enviroment]\n[environment]\n"}))

    assert task.warnings == (
        "task.toml, line 1: enviroment: unknown key, ignored; did you mean 'environment'?",
    )


def test_lines_are_right_behind_long_texts_lists_and_lists_of_tables(make_task):
    config = '''source = """
[agent]
timeout_sec = 1 \\"""
"""
artifacts = [
  "a", # ]
  'b',
]
[[environment.mcp_servers]]
name = "one"
url = "http://x"
[[environment.mcp_servers]]
name = "two"
[[environment.setup_commands]]
command = 3
["metadata"]
"q.k" = 1
'''
    assert problems_of(make_task({"task.toml": config})) == (
        "task.toml, line 12: environment.mcp_servers[1].url: transport sse needs a url",
        "task.toml, line 15: environment.setup_commands[0].command = 3: expected text in quotes",
    )


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("a = " + "[" * 40 + "]" * 40, "task.toml: the tables nest too deeply"),
        ("a = " + "[" * 9000, "task.toml: the tables nest too deeply"),
        (b"a = '\xff'", "task.toml, line 1: byte 0xff is not UTF-8; save the file as UTF-8"),
        (b"#" * (1 << 21), "task.toml: expected a regular file of at most 1 MiB"),
    ],
)
def test_file_that_is_no_toml_is_one_problem(make_task, content, problem):
    assert problems_of(make_task({"task.toml": content})) == (problem,)


@pytest.mark.parametrize(
    ("content", "line"), [("a = \n", 1), ("a = 1\nb = [1,\n", 3), ("\na = 2026-02-30", 2)]
)
def test_syntax_error_names_its_line(make_task, content, line):
    (problem,) = problems_of(make_task({"task.toml": content}))

    assert problem.startswith(f"task.toml, line {line}: not valid TOML: ")


def test_number_of_too_many_digits_is_one_problem(make_task):
    (problem,) = problems_of(make_task({"task.toml": f"a = {'9' * 5000}\n"}))

    assert problem.startswith("task.toml: not valid TOML: ")


def test_crlf_and_byte_order_mark_are_tolerated(make_task):
    task = read_task(make_task({"task.toml": b"\xef\xbb\xbf[agent]\r\ntimeout_sec = 5\r\n"}))

    assert task.config.agent.timeout_sec == 5.0


def test_free_maps_keep_plain_data(make_task):
    task = read_task(
        make_task({"task.toml": "[metadata]\nwhen = 2026-01-02\nlist = [1, {a = 2.5}]\nodd = inf\n"})
    )

    assert task.config.metadata == {"when": "2026-01-02", "list": [1, {"a": 2.5}], "odd": "inf"}
    assert type(task).model_validate_json(task.model_dump_json()) == task


def test_author_is_told_of_what_has_no_effect(make_task):
    config = "[verifier]\nworkspace_recovery = true\n"

    task = read_task(make_task({"task.toml": config, "environment/skills/a/skill.md": "x"}))

    assert task.warnings == (
        "verifier: workspace_recovery and submission_files keep nothing in this version",
        "environment/skills: it has no skill: no folder with a SKILL.md",
    )


@pytest.mark.parametrize(
    ("version", "limits"),
    [
        ("1.0", (1.0, 2048, 10240)),
        ("1.3", (1.0, 2048, 10240)),
        ("1.4", (None, None, None)),
        ("1.10", (None,) * 3),
    ],
)
def test_limits_that_are_not_given_are_defaults_until_1_3_and_none_from_1_4(make_task, version, limits):
    sandbox = read_task(make_task({"task.toml": f'schema_version = "{version}"\n'})).config.sandbox

    assert (sandbox.cpus, sandbox.memory_mb, sandbox.storage_mb) == limits


def test_limits_of_a_1_4_file_hold_where_they_are_given(make_task):
    config = 'schema_version = "1.4"\n[environment]\ncpus = 3\n[verifier.environment]\nmemory_mb = 100\n'

    task = read_task(make_task({"task.toml": config})).config

    assert (task.sandbox.cpus, task.sandbox.memory_mb) == (3.0, None)
    assert task.verifier.sandbox is not None
    assert (task.verifier.sandbox.cpus, task.verifier.sandbox.memory_mb) == (None, 100)


@pytest.mark.parametrize(("text", "size_mb"), [("2Gi", 2048), ("2 GiB", 2048), ("1T", 1 << 20), ("1024k", 1)])
def test_sizes_are_read_in_every_usual_spelling(make_task, text, size_mb):
    config = f'[environment]\nmemory = "{text}"\n'

    assert read_task(make_task({"task.toml": config})).config.sandbox.memory_mb == size_mb

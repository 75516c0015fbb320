"""task.md: front matter, shorthands, profiles, prompts, and the two forms side by side."""

from __future__ import annotations

import pytest

from benchflow_client.errors import TaskError
from benchflow_client.tasks.read import read_task

FRONT = "---\nversion: '1.3'\n---\n"


def problems_of(folder) -> tuple[str, ...]:
    with pytest.raises(TaskError) as caught:
        read_task(folder)
    return caught.value.problems


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Do it.\n", "task.md, line 1: the first line must be exactly `---`, then YAML, then `---`"),
        (" ---\na: 1\n---\nx", "task.md, line 1: the first line must be exactly `---`, then YAML, then `---`"),
        ("---\nversion: '1.3'\n", "task.md, line 1: the YAML that starts here is never ended by a line `---`"),
        ("---\n- a\n---\nx", 'task.md, line 2: expected `key: value` lines, not ["a"]'),
        ("---\n---\nx", "task.md, line 2: expected `key: value` lines, not null"),
        ("---\nagent: {}\nagent: {}\n---\nx", "task.md, line 3: key 'agent' is given twice"),
        ("---\na: !!python/object:os.system x\n---\nx", "task.md, line 2: tag 'tag:yaml.org,2002:python/object:os.system' is not read"),
        ("---\na: *b\n---\nx", "task.md, line 2: alias *b stands for nothing that is complete"),
        ("---\na: &b [*b]\n---\nx", "task.md, line 2: alias *b stands for nothing that is complete"),
        ("---\na: " + "[" * 60 + "]" * 60 + "\n---\nx", "task.md, line 2: the YAML nests too deeply"),
        ("---\na: '" + "x" * 300_000 + "'\n---\nx", "task.md: more than 256 KiB of YAML"),
        (FRONT, "task.md: no prompt; write what the agent should do below the second `---`"),
    ],
)  # fmt: skip
def test_document_that_breaks_the_grammar_is_one_problem(make_document, text, problem):
    assert problems_of(make_document(text)) == (problem,)


@pytest.mark.parametrize(
    "text", ["---\na: [1\n---\nx", "---\na: 2026-99-99\n---\nx", "---\n? [a]\n: 1\n---\nx"]
)
def test_text_that_is_no_yaml_is_a_problem_of_task_md(make_document, text):
    (problem,) = problems_of(make_document(text))

    assert problem.startswith("task.md")


def test_aliases_that_multiply_are_refused_before_anything_is_built(make_document):
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12))

    (problem,) = problems_of(make_document(f"---\n{bomb}---\nx"))

    assert problem.endswith("more than 20000 values, aliases written out")


def test_harmless_alias_is_read(make_document):
    task = read_task(make_document("---\nmetadata:\n  a: &x {k: 1}\n  b: *x\n  3: 2026-01-02\n---\nx"))

    assert task.config.metadata == {"a": {"k": 1}, "b": {"k": 1}, "3": "2026-01-02"}


@pytest.mark.parametrize(
    ("yaml", "problem"),
    [
        ("agnet: {}", "task.md, line 2: agnet: unknown key; did you mean 'agent'?"),
        ("scens: []", "task.md, line 2: scens: unknown key; did you mean 'scenes'?"),
        ("agent:\n  timeout_secs: 3", "task.md, line 3: agent.timeout_secs: unknown key; did you mean 'timeout_sec'?"),
        ("environment: {}", "task.md, line 2: environment: unknown key; write 'sandbox'"),
        ("verifier:\n  environment_mode: shared", "task.md, line 3: verifier.environment_mode: unknown key; write 'sandbox_mode'"),
        ("agent:\n  timeout_sec: 'ten'", 'task.md, line 3: agent.timeout_sec = "ten": expected a number of seconds'),
        ("agent:\n  timeout_sec: .nan", "task.md, line 3: agent.timeout_sec = nan: expected a finite number of seconds"),
        ("version: 1.3", "task.md, line 2: version = 1.3: expected text in quotes"),
        ("sandbox:\n  setup_commands:\n    - command: x\n    - command: y\n      timeout_sec: 0", "task.md, line 6: sandbox.setup_commands[1].timeout_sec = 0: expected more than 0 seconds"),
        ("name: 3", "task.md, line 2: name = 3: expected text in quotes"),
        ("name: a\ntask: {name: b/c}", "task.md, line 2: name: is a shorthand of task.name; give one of the two"),
        ("image: a\nsandbox: 3", "task.md, line 3: sandbox = 3: expected a table"),
        ("profile: code-chnage", "task.md, line 2: profile = \"code-chnage\": no such profile; there are code-change, multi-agent, harbor-compatible, reward-kit, acceptance-live, leaderboard-local; did you mean 'code-change'?"),
        ("profiles: code-change", 'task.md, line 2: profiles = "code-change": expected a list of profile names'),
        ("scenes:\n  - turns: [reviewer]", "task.md, line 3: scenes[0]: role 'reviewer' is not declared in agents.roles"),
        ("agents: {roles: {a: {agent: x}, b: {agent: y}}}\nscenes:\n  - roles: [a]\n    turns: [b]", "task.md, line 5: scenes[0].turns = [\"b\"]: role 'b' is not in the scene's roles"),
        ("user:\n  stop_rule: soon", 'task.md, line 3: user.stop_rule = "soon": expected a rule that ends with -<n>-rounds'),
        ("benchflow:\n  prompt: {composition: all}", "task.md, line 3: benchflow.prompt.composition = \"all\": expected 'replace' or 'append'"),
        ("agents: {roles: {a: {}}}", "task.md, line 2: agents.roles.a.agent: is missing"),
        ("scenes: [{turns: 3}]", "task.md, line 2: scenes[0].turns = 3: expected a list"),
    ],
)  # fmt: skip
def test_wrong_front_matter_is_refused_with_its_line(make_document, yaml, problem):
    assert problems_of(make_document(f"---\n{yaml}\n---\nDo it.\n")) == (problem,)


def test_shorthands_are_written_out(make_document):
    yaml = "name: foo\nimage: debian:12\nversion: '1.3'\nverifier: verifier/test.sh\noracle: oracle\n"

    task = read_task(make_document(f"---\n{yaml}---\nDo it.\n"))

    assert task.config.task.name == "benchflow/foo"
    assert task.config.sandbox.docker_image == "debian:12"
    assert task.config.schema_version == "1.3"
    assert task.document == {
        "benchflow": {"verifier": {"path": "verifier/test.sh"}, "oracle": {"path": "oracle"}}
    }


def test_name_with_a_slash_is_kept(make_document):
    assert read_task(make_document("---\nname: org/foo\n---\nx")).config.task.name == "org/foo"


def test_code_change_profile_sets_defaults_below_what_the_author_says(make_document):
    yaml = "profile: code-change\nsandbox:\n  cpus: 2\n  allow_internet: true\n"

    task = read_task(make_document(f"---\n{yaml}---\nDo it.\n"))

    assert (task.config.agent.timeout_sec, task.config.agent.network_mode) == (7200.0, "no-network")
    assert (task.config.verifier.timeout_sec, task.config.verifier.user) == (1200.0, "root")
    sandbox = task.config.sandbox
    assert (sandbox.docker_image, sandbox.cpus, sandbox.memory_mb) == ("ubuntu:24.04", 2.0, 8192)
    assert (sandbox.workdir, sandbox.network_mode) == ("/repo", "public")
    assert task.document["benchflow"] == {"prompt": {"composition": "append"}}
    assert task.warnings == ('environment/Dockerfile: not built, the profile sets the image "ubuntu:24.04"',)


def test_multi_agent_profile_declares_three_roles_and_scenes(make_document):
    task = read_task(make_document("---\nprofiles: [multi-agent, reward-kit]\n---\nDo it.\n"))

    assert list(task.document["agents"]["roles"]) == ["architect", "implementer", "reviewer"]
    assert [scene["name"] for scene in task.document["scenes"]] == ["design", "implement", "review"]
    assert task.warnings == ("task.md, line 2: profiles: profile 'reward-kit' sets nothing in this version",)


def test_reserved_headings_divide_the_prompt(make_document):
    body = """Dropped, a prompt section exists.
## Prompt
Base text.
## other
still base
\\## role:kept
## ROLE:Dev.1
For the developer.
## scene:one
For the scene.
## user-persona
A person.
"""
    task = read_task(make_document(FRONT + body))

    assert task.instruction == "Base text.\n## other\nstill base\n## role:kept"
    assert task.document["prompts"] == {
        "roles": {"Dev.1": "For the developer."},
        "scenes": {"one": "For the scene."},
        "user_persona": "A person.",
    }


def test_text_before_the_first_heading_is_the_prompt_otherwise(make_document):
    assert read_task(make_document(FRONT + "Base.\n\n## role:a\nx\n")).instruction == "Base."


def test_section_given_twice_is_a_problem(make_document):
    folder = make_document(FRONT + "## role:a\nx\n## Role:a\ny\n## prompt\nz\n")

    assert problems_of(folder) == ("task.md, line 6: section '## Role:a' is given twice",)


def test_side_files_win_over_sections(make_document):
    files = {"prompts/role.a.md": "from file\r\n", "prompts/user-persona.md": "p", "prompts/rolle.md": "?"}

    task = read_task(make_document(FRONT + "Base.\n## role:a\nfrom body\n", files))

    assert task.document["prompts"] == {"roles": {"a": "from file\n"}, "user_persona": "p"}
    assert task.warnings == (
        "prompts/rolle.md: not read; names are role.<name>.md, scene.<name>.md, user-persona.md",
    )


def test_prompts_that_is_a_file_is_a_problem(make_document):
    assert problems_of(make_document(FRONT + "Base.", {"prompts": "x"})) == (
        "prompts: cannot be read: Not a directory",
    )


def test_windows_line_ends_and_byte_order_mark_are_tolerated(make_document):
    text = "\ufeff---\r\nagent:\r\n  timeout_sec: 5\r\n---\r\nOne.\r\nTwo.\r\n"

    task = read_task(make_document(text))

    assert task.config.agent.timeout_sec == 5.0
    assert task.instruction == "One.\nTwo."


def test_roles_scenes_and_user_are_kept_as_data(make_document):
    yaml = """
agents: {roles: {a: {agent: codex, timeout_sec: 5}}}
scenes: [{turns: [a, {role: a, prompt: go}]}]
user: {stop_rule: stop-3-rounds, private_facts: {age: 3}}
benchflow: {teams: [1], prompt: {order: [base, turn]}}
"""
    document = read_task(make_document(f"---{yaml}---\nDo it.\n")).document

    assert document["agents"] == {"roles": {"a": {"agent": "codex", "timeout_sec": 5.0}}}
    assert document["scenes"] == [
        {"name": "scene-1", "turns": [{"role": "a"}, {"role": "a", "prompt": "go"}]}
    ]
    assert document["user"] == {"stop_rule": "stop-3-rounds", "private_facts": {"age": 3}}
    assert document["benchflow"] == {"teams": [1], "prompt": {"order": ["base", "turn"]}}


BOTH = "---\nschema_version: '1.0'\nagent: {timeout_sec: 5}\n---\nDo it.\n"


def test_both_forms_that_agree_are_one_task(make_document):
    files = {
        "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 5\n',
        "instruction.md": "Do it.  \n\n",
        "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n",
        "solution/solve.sh": "true\n",
    }

    task = read_task(make_document(BOTH, files))

    assert (task.form, task.verifier_dir, task.oracle_dir) == ("task.md", "verifier", "oracle")


def test_both_forms_that_differ_are_refused_with_every_difference(make_document):
    files = {
        "task.toml": 'version = "1.0"\n[agent]\ntimeout_sec = 6\n[environment]\ncpus = 2\n',
        "instruction.md": "Do that.",
        "tests/test.sh": "echo 0\n",
        "tests/more.py": "",
    }

    assert problems_of(make_document(BOTH, files)) == (
        "tests: differs from verifier in more.py, test.sh; keep one folder, or make them equal",
        "task.toml: agent.timeout_sec = 6.0, but task.md says 5.0",
        "task.toml: sandbox.cpus = 2.0, but task.md says 1.0",
        "instruction.md: differs from the prompt of task.md",
    )


@pytest.mark.parametrize(
    ("given", "missing"), [("task.toml", "instruction.md"), ("instruction.md", "task.toml")]
)
def test_half_of_the_other_form_is_a_problem(make_document, given, missing):
    folder = make_document(BOTH, {given: ""})

    assert problems_of(folder) == (
        f"{missing}: missing; beside task.md stand both task.toml and instruction.md, or neither",
    )


def test_default_strategy_of_the_verifier_document_is_kept(make_document):
    text = "---\nverifier:\n  strategies:\n    judge: {type: llm-judge}\n    run: {type: script, command: ./test.sh}\n"

    first = read_task(make_document(FRONT + "x", {"verifier/verifier.md": text + "---\n"}, name="one"))
    named = text + "  default_strategy: run\n---\n"
    second = read_task(make_document(FRONT + "x", {"verifier/verifier.md": named}, name="two"))

    assert first.document["verifier_strategy"] == {"name": "judge", "type": "llm-judge"}
    assert second.document["verifier_strategy"] == {"name": "run", "type": "script", "command": "./test.sh"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("---\nverifier:\n  default_strategy: x\n  strategies: {a: {}}\n---\n", 'verifier/verifier.md, line 3: verifier.default_strategy = "x": expected one of a'),
        ("---\na: [\n---\n", "verifier/verifier.md, line 3: not valid YAML: did not find expected node content"),
        ("---\nnever ended\n", "verifier/verifier.md, line 1: the YAML that starts here is never ended by a line `---`"),
    ],
)  # fmt: skip
def test_broken_verifier_document_is_a_problem(make_document, text, problem):
    assert problems_of(make_document(FRONT + "x", {"verifier/verifier.md": text})) == (problem,)


@pytest.mark.parametrize("text", ["Just notes.\n", "---\nname: x\n---\n"])
def test_verifier_document_without_strategies_changes_nothing(make_document, text):
    assert read_task(make_document(FRONT + "x", {"verifier/verifier.md": text})).document == {}


def test_profile_sets_the_limits_that_a_1_4_document_leaves_out(make_document):
    sandbox = read_task(make_document("---\nversion: '1.4'\nprofile: code-change\n---\nx")).config.sandbox

    assert (sandbox.cpus, sandbox.memory_mb, sandbox.storage_mb) == (4.0, 8192, 10240)

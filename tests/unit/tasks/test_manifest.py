"""Environment manifests: where they are found, what is wrong with them, what they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchflow_client.errors import JobSpecError, TaskError
from benchflow_client.schema.job import JobSpec
from benchflow_client.tasks.gate import unsupported
from benchflow_client.tasks.manifest import manifest_text
from benchflow_client.tasks.read import read_task
from benchflow_client.tasks.separate import as_run

NOTES = """
[environment]
name = "notes"
[[environment.services]]
name = "notes"
command = "serve-notes"
port = 9001
"""
IN_YAML = "environment:\n  name: notes\n  services: [{name: notes, command: serve-notes, port: 9001}]\n"


def reasons(task, *, has_compose=True) -> tuple[str, ...]:
    return unsupported(task, networks=frozenset({"public"}), has_compose=has_compose, has_gpus=False)


def document(manifest: str) -> str:
    return f"---\nbenchflow: {{environment: {{manifest: {manifest}}}}}\n---\nDo it.\n"


def spec(**fields) -> JobSpec:
    return JobSpec(tasks="tasks", agent=("oracle",), **fields)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("environment.toml", NOTES),
        ("environment.yaml", IN_YAML),
        ("environment.yml", IN_YAML),
        (
            "environment.toml",
            NOTES.replace("[environment]\n", "").replace("environment.services", "services"),
        ),
    ],
)
def test_a_manifest_in_the_task_folder_is_the_tasks(make_task, file, text):
    manifest = read_task(make_task({file: text})).manifest

    assert manifest is not None
    assert [(service.name, service.port, service.health_path) for service in manifest.services] == [
        ("notes", 9001, "/health")
    ]
    assert (manifest.readiness.timeout_sec, manifest.task_selection.key) == (120, "BENCHFLOW_TASK_ID")


@pytest.mark.parametrize(
    "declared", ["{name: notes, services: [{name: a, command: b, port: 1}]}", "own/notes.toml"]
)
def test_a_task_md_declares_it_as_a_table_or_names_a_file(make_document, declared):
    folder = make_document(document(declared))
    (folder / "own").mkdir()
    (folder / "own/notes.toml").write_text(NOTES)

    manifest = read_task(folder).manifest

    assert manifest is not None
    assert manifest.name == "notes"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[environment", "environment.toml, line 1: not valid TOML"),
        ('[environment]\nnam = "x"', "environment.toml, line 2: environment.nam: unknown key; did you mean 'name'?"),
        ("[environment]\nports = [70000]", "environment.toml, line 2: environment.ports[0] = 70000: expected at most 65535"),
        (f"{NOTES}[other]\na = 1", "other: unknown key; a manifest has the table 'environment' only"),
        (NOTES.replace('"notes"\n[[', '"notes"\nimage = "a"\nbase_image = "b"\n[['), "image and base_image exclude each other"),
        (NOTES.replace('"notes"\n[[', '"notes"\nowns_lifecycle = true\n[['), "owns_lifecycle = true excludes services"),
        ('[environment]\nname = "x"\nowns_lifecycle = false', "owns_lifecycle = false needs services"),
        (NOTES + NOTES[NOTES.index("[[") :], "two services have one name"),
        (f'{NOTES}[environment.readiness]\nhttp = ["ftp://a"]', "'ftp://a' is no http:// address"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_file_line_and_key(make_task, text, problem):
    with pytest.raises(TaskError) as caught:
        read_task(make_task({"environment.toml": text}))

    assert any(problem in line for line in caught.value.problems), caught.value.problems


def test_a_file_outside_the_task_is_not_read(make_document):
    with pytest.raises(TaskError) as caught:
        read_task(make_document(document("../../secret.toml")))

    assert caught.value.problems == (
        "task.md: benchflow.environment.manifest: '../../secret.toml' is not in the task folder",
    )


def test_what_is_not_honoured_is_a_reason(make_task, make_document):
    persistent = make_task({
        "environment.toml": '[environment]\nname = "x"\nisolation = "persistent"\nkeep_alive = false\n'
    })
    version = make_document(document("env0@prod"), name="by-version")

    lasting = (
        "environment.isolation: every trial has services of its own; only per_task is run",
        "environment.keep_alive: services run until the trial ends",
    )
    assert reasons(read_task(persistent)) == lasting
    assert reasons(read_task(persistent), has_compose=False) == (
        *lasting,
        "environment.owns_lifecycle: this sandbox does not run the entry point of an image; "
        "declare the services it starts",
    )
    assert reasons(read_task(version)) == (
        "benchflow.environment.manifest: versions are looked up for a run: --environment-manifest env0@prod",
    )


def test_a_manifest_of_the_run_wins_and_sets_image_variable_and_what_is_kept(make_task, tmp_path):
    task = read_task(make_task({"environment.toml": NOTES}))
    table = json.loads(
        '{"environment": {"name": "other", "image": "world:1", "task_selection": {"key": "WHICH"}, "state":'
        '{"paths": ["/data/a.db"]}, "services": [{"name": "a", "command": "b", "port": 1}]}}'
    )

    ran = as_run(task, spec(environment_manifest=manifest_text(json.dumps(table), None)))

    assert ran.manifest is not None
    assert ran.manifest.name == "other"
    assert ran.config.sandbox.docker_image == "world:1"
    assert ran.config.sandbox.env == {"WHICH": task.name}
    assert [item.destination for item in ran.config.artifacts] == ["state/data/a.db", "state/data/a.db-wal"]
    assert as_run(task, spec()).config.sandbox.env == {"BENCHFLOW_TASK_ID": task.name}


def test_a_run_names_a_file_or_a_version_of_the_registry(tmp_path: Path):
    (tmp_path / "notes@v1.toml").write_text(NOTES)
    (tmp_path / "notes@v2.yaml").write_text(IN_YAML.replace("9001", "9002"))

    by_path = json.loads(manifest_text(str(tmp_path / "notes@v1.toml"), None))
    by_version = json.loads(manifest_text("notes@v2", tmp_path))

    assert by_path["services"][0]["port"] == 9001
    assert by_version["services"][0]["port"] == 9002
    assert json.loads(manifest_text(json.dumps(by_version), None)) == by_version


@pytest.mark.parametrize(
    ("value", "has_registry", "reason"),
    [
        ("notes@v9", True, r"is not in the registry .*; it has notes@v1\."),
        ("notes@v9", False, "there is no registry to look it up in"),
        ("../notes.toml", True, "is no file and no name@version"),
        ("{", True, "is no JSON"),
        ('{"environment": {"name": 3}}', True, r"environment\.name = 3: expected text"),
    ],
)
def test_a_manifest_that_cannot_be_found_or_read_stops_the_job(tmp_path, value, has_registry, reason):
    (tmp_path / "notes@v1.toml").write_text(NOTES)

    with pytest.raises(JobSpecError, match=reason):
        manifest_text(value, tmp_path if has_registry else None)

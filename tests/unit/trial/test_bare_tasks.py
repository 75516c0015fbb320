"""Without skills a task's image is built as if the task had none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from benchflow_client.schema.skills import PlannedSkills
from benchflow_workers.sandbox.base import SandboxSpec
from benchflow_workers.trial.bare import without_skills
from benchflow_workers.trial.prepare import prepare
from tests.worlds import World

MakeWorld = Callable[..., World]

DOCKERFILE = """\
FROM debian:bookworm-slim
# the task's own
COPY skills /root/.claude/skills
COPY --chown=1:1 ["./skills/pdf", "data.txt", "/srv/"]
ADD skills/* \\
    /opt/skills/
COPY data.txt /srv/data.txt
RUN echo skills
WORKDIR /app
"""
FILES = {
    "environment/Dockerfile": DOCKERFILE,
    "environment/data.txt": "1\n",
    "environment/skills/pdf/SKILL.md": "---\nname: pdf\ndescription: Read PDF files.\n---\n",
}


def _sandbox(world: World) -> SandboxSpec:
    return prepare(world.attempt(), world.parts).sandbox


def _context(world: World) -> Path:
    context = _sandbox(world).build_context
    assert context is not None
    return context


def test_no_file_of_a_skill_gets_into_the_image_and_no_line_copies_one(make: MakeWorld) -> None:
    context = _context(make(files=FILES))

    assert sorted(path.name for path in context.iterdir()) == ["Dockerfile", "data.txt"]
    assert (context / "Dockerfile").read_text() == (
        "FROM debian:bookworm-slim\n"
        "# the task's own\n"
        'COPY --chown=1:1 ["data.txt", "/srv/"]\n'
        "COPY data.txt /srv/data.txt\n"
        "RUN echo skills\n"
        "WORKDIR /app\n"
    )


def test_a_job_with_skills_builds_the_task_as_its_author_wrote_it(make: MakeWorld) -> None:
    context = _context(make(files=FILES, skill_mode="with-skill"))

    assert (context / "Dockerfile").read_text() == DOCKERFILE
    assert (context / "skills" / "pdf" / "SKILL.md").is_file()


def test_images_with_and_without_skills_are_not_taken_for_each_other(make: MakeWorld) -> None:
    without, with_own = make(files=FILES), make(files=FILES, skill_mode="with-skill")

    assert _sandbox(without).build_digest != _sandbox(with_own).build_digest


def test_a_task_without_skills_has_the_same_image_in_every_mode(make: MakeWorld) -> None:
    digests = {
        _sandbox(make(skill_mode=mode)).build_digest for mode in ("no-skill", "with-skill", "self-gen")
    }

    assert len(digests) == 1


def test_skills_that_a_job_brings_take_the_place_of_the_task_s_own(make: MakeWorld) -> None:
    world = make(files=FILES, skill_mode="with-skill")
    skills = PlannedSkills(bundle="0" * 64, names=("other",))
    plan = world.plan.model_copy(update={"skills": skills})

    folder = without_skills(world.parts.bundles.task(plan.tasks[0]), plan)

    assert not (folder.path / "environment" / "skills").exists()


def test_a_link_to_a_skill_is_no_way_into_the_image(make: MakeWorld) -> None:
    files = {**FILES, "environment/Dockerfile": "FROM debian:bookworm-slim\nCOPY more /opt/more\n"}
    world = make(files=files, links={"environment/more": "skills/pdf"})

    assert "COPY" not in (_context(world) / "Dockerfile").read_text()


@pytest.mark.parametrize("name", ["docker/own.dockerfile", "Dockerfile.main"])
def test_every_dockerfile_of_the_services_is_freed_of_skills(make: MakeWorld, name: str) -> None:
    compose = f"services: {{main: {{build: {{context: ., dockerfile: {name}}}, volumes: ['./skills:/mnt', './data.txt:/d']}}}}"
    files = {**FILES, f"environment/{name}": DOCKERFILE, "environment/docker-compose.yaml": compose}

    world = make(files=files)
    world.sandboxes.capabilities = replace(world.sandboxes.capabilities, has_compose=True)

    sandbox = _sandbox(world)

    assert sandbox.services is not None
    assert "skills/pdf" not in (sandbox.services.folder / name).read_text()
    assert [mount.target for mount in sandbox.services.compose.main.volumes] == ["/d"]

"""What is read of a task's docker-compose.yaml, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow_client.schema.compose import Compose
from benchflow_client.schema.task import TaskConfig
from benchflow_client.tasks.check import check
from benchflow_client.tasks.compose import MAIN_IMAGE, compose_lookup, read_compose, resolve_compose
from benchflow_client.tasks.compose_variables import TemplateError, VariableError, fill_in, read_env_file
from benchflow_client.tasks.findings import Findings

FILE = "environment/docker-compose.yaml"


def written(folder: Path, text: str) -> Path:
    (folder / "environment/site").mkdir(parents=True, exist_ok=True)
    (folder / "environment/site/a.txt").write_text("a")
    (folder / "tests").mkdir(exist_ok=True)
    (folder / FILE).write_text(text)
    return folder


def problems(folder: Path, text: str) -> list[str]:
    findings = Findings()
    read_compose(written(folder, text), None, findings)
    return findings.problems


def refused(folder: Path, text: str) -> tuple[str, ...]:
    findings = Findings()
    found = read_compose(written(folder, text), None, findings)
    assert found is not None, findings.problems
    return found.refused


def resolved(folder: Path, text: str, **env: str) -> Compose:
    findings, config = Findings(), TaskConfig()
    found = read_compose(written(folder, text), config, findings)
    assert found is not None, findings.problems
    return resolve_compose(found, compose_lookup(folder, config, env, verifier_dir="tests"))


def test_every_spelling_becomes_one_form(tmp_path):
    text = """
    version: "3.8"
    x-note: {any: thing}
    services:
      db:
        image: debian
        command: sh -c "echo 'a b'"
        environment: [A=1, B]
        env_file: site/a.txt
        healthcheck: {test: test -e /ready, interval: 1m30s, timeout: 500ms}
        depends_on: [cache]
        networks: [back]
        volumes: [data:/data:ro, ./site:/site, /own, {type: tmpfs, target: /mem, tmpfs: {size: 1}}]
        deploy: {resources: {limits: {cpus: "0.5", memory: 1.5g, pids: 9}, reservations: {cpus: "1"}}, replicas: 1}
        ulimits: {nofile: 5, nproc: {soft: 1, hard: 2}}
        extra_hosts: ["a:10.0.0.1", "b=::1"]
        cap_add: [CAP_SYS_PTRACE]
        ports: ["80:80"]
        container_name: fixed
        platform: linux/amd64
      cache: {image: debian, restart: on-failure:3, network_mode: none}
      idle: {image: debian, profiles: [debug]}
    networks: {back: {driver: bridge, internal: true}}
    volumes: {data: }
    """

    compose = resolved(tmp_path, text)

    db = compose.services["db"]
    assert set(compose.services) == {"main", "db", "cache"}
    assert compose.order.index("cache") < compose.order.index("db")
    assert db.command == ("sh", "-c", "echo 'a b'")
    assert db.environment == {"A": "1", "B": None}
    assert db.env_file == ("site/a.txt",)
    assert db.healthcheck is not None
    assert (db.healthcheck.test, db.healthcheck.interval, db.healthcheck.timeout) == (
        ("CMD-SHELL", "test -e /ready"),
        90.0,
        0.5,
    )
    assert [(item.type, item.source, item.target, item.read_only) for item in db.volumes] == [
        ("volume", "data", "/data", True),
        ("bind", "./site", "/site", False),
        ("volume", "", "/own", False),
        ("tmpfs", "", "/mem", False),
    ]
    assert (db.cpus, db.mem_limit, db.pids_limit) == (0.5, 1_610_612_736, 9)
    assert [(limit.soft, limit.hard) for limit in db.ulimits.values()] == [(5, 5), (1, 2)]
    assert db.extra_hosts == {"a": "10.0.0.1", "b": "::1"}
    assert db.cap_add == ("SYS_PTRACE",)
    assert compose.networks["back"].internal is True
    assert compose.volumes == ("data",)


def test_what_every_runner_sets_is_filled_in_and_its_log_mounts_go(tmp_path):
    text = """
    services:
      main:
        build: {context: "${CONTEXT_DIR}"}
        image: ${MAIN_IMAGE_NAME}
        volumes: ["${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}", {type: bind, source: "${HOST_VERIFIER_LOGS_PATH}", target: /v}]
        environment: ["TEST_DIR=${TEST_DIR}"]
        deploy: {resources: {limits: {cpus: "${CPUS}", memory: "${MEMORY}"}}}
    """

    main = resolved(tmp_path, text).main

    assert main.build is not None
    assert (main.build.context, main.image, main.volumes) == (".", MAIN_IMAGE, ())
    assert main.environment == {"TEST_DIR": "/tests"}
    assert (main.cpus, main.mem_limit) == (1.0, 2048 << 20)


def test_only_the_tasks_own_variables_are_known(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET_OF_WORKER", "s3cret")
    written(tmp_path, "")
    (tmp_path / "environment/.env").write_text("TAG=12\nNAME=db-$TAG # why\nRAW='a $b'\nexport Q=\"x\\ny\"\n")
    text = "services: {db: {image: 'a:${TAG}', hostname: '${NAME}', user: '${UID_OF:-7}', working_dir: '/${RAW}'}}"

    db = resolved(tmp_path, text, TAG="13").services["db"]

    assert (db.image, db.hostname, db.user, db.working_dir) == ("a:13", "db-13", "7", "/a $b")
    with pytest.raises(VariableError) as caught:
        resolved(tmp_path, "services: {db: {image: '${SECRET_OF_WORKER}'}}")
    assert caught.value.name == "SECRET_OF_WORKER"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("$A-${B}", "1-"),
        ("$$A", "$A"),
        ("${C:-${A}x}", "1x"),
        ("${B-x}${B:-y}", "y"),
        ("${A:+set}${C+set}", "set"),
        ("${A:?no}${B?no}", "1"),
        ("{}", "{}"),
    ],
)
def test_variables_take_every_form(template, expected):
    assert fill_in([template], {"A": "1", "B": ""}.get) == [expected]


@pytest.mark.parametrize("template", ["$", "$-", "${A", "${}", "${A!x}", "${A:-" * 5000 + "}" * 5000])
def test_what_is_no_template_says_so(template):
    with pytest.raises(TemplateError):
        fill_in(template, {}.get)


def test_variable_that_must_be_set_says_the_files_own_words():
    with pytest.raises(VariableError, match="give a tag"):
        fill_in("${TAG:?give a $WHAT}", {"WHAT": "tag"}.get)


def test_environment_file_leaves_out_what_sets_nothing():
    assert read_env_file("\ufeff# a\nnothing\nA = 1\nB=$A-$C\n", {"C": "3"}.get) == {"A": "1", "B": "1-3"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("secrets: [a]", "services.db.secrets[0]: only secrets declared as a file of the task are placed"),
        ("extends: {service: main}", "services.db.extends: is not run by this version"),
        ("privileged: true", "services.db.privileged: would give the task the worker's host; no sandbox does that"),
        ("network_mode: host", "services.db.network_mode: would give the task the worker's host; no sandbox does that"),
        ("network_mode: 'service:main'", "services.db.network_mode: is not run by this version"),
        ("build: {context: site, ssh: [default]}", "services.db.build.ssh: is not run by this version"),
        ("deploy: {replicas: 2}", "services.db.deploy.replicas: is not run by this version"),
        ("deploy: {resources: {reservations: {devices: [{capabilities: [gpu]}]}}}", "services.db.deploy.resources.reservations.devices: no GPUs are given to services"),
        ("networks: {default: {ipv4_address: 10.0.0.2}}", "services.db.networks.default.ipv4_address: is not run by this version"),
        ("volumes: [{type: volume, target: /a, selinux: z}]", "services.db.volumes[0].selinux: is not run by this version"),
        ("platform: linux/arm64", "services.db.platform: is not run by this version"),
        ("scale: 3", "services.db.scale: is not run by this version"),
    ],
)  # fmt: skip
def test_what_is_not_run_is_refused_with_its_line(tmp_path, line, reason):
    text = f"services:\n  db:\n    image: debian\n    {line}\n"

    assert refused(tmp_path, text) == (f"{FILE}, line 4: {reason}",)


def test_check_tells_what_of_the_file_is_not_run(make_task):
    report = check(make_task({FILE: "services:\n  main:\n    secrets: [a]\n"}))

    reason = "services.main.secrets[0]: only secrets declared as a file of the task are placed"
    assert f"{FILE}, line 3: {reason}" in report.tasks[0].warnings


def test_networks_and_volumes_made_elsewhere_are_refused(tmp_path):
    text = "services: {}\nnetworks:\n  n: {external: true}\nvolumes:\n  v: {driver_opts: {o: bind}}\ninclude: [a.yaml]\n"
    plugin = "is not run by this version"

    assert refused(tmp_path, text) == (
        f"{FILE}, line 6: include: {plugin}",
        f"{FILE}, line 3: networks.n.external: {plugin}",
        f"{FILE}, line 5: volumes.v.driver_opts: {plugin}",
    )


@pytest.mark.parametrize(
    ("service", "reason"),
    [
        ("volumes: [/var/run/docker.sock:/s]", "'/var/run/docker.sock' is not in the task folder, and nothing else of a worker's host is given to a task"),
        ("volumes: ['../../x:/x']", "'../../x' is not in the task folder, and nothing else of a worker's host is given to a task"),
        ("volumes: ['gone:/x']", "no volume 'gone' is declared"),
        ("volumes: ['./site:/']", "expected an absolute path below /"),
        ("cap_add: [NET_ADMIN]", "NET_ADMIN would give the task rights over the worker's host or its network"),
        ("extra_hosts: ['a:host-gateway']", "a would name the worker's host, which a task must not reach"),
        ("depends_on: [gone]", "depends on 'gone', which is no service"),
        ("depends_on: [db]", "depends on 'db', which waits for 'db'"),
        ("networks: [gone]", "no network 'gone' is declared"),
        ("env_file: gone.env", "no file 'gone.env' below the task"),
        ("build: gone", "no folder 'gone' below the task"),
        ("mem_limit: much", "expected a size, e.g. \"512m\""),
        ("mem_limit: true", "expected a size, e.g. \"512m\""),
        ("restart: sometimes", "expected no, always, unless-stopped or on-failure"),
        ("healthcheck: {test: [true]}", "expected CMD, CMD-SHELL or NONE first"),
        ("healthcheck: {interval: 5}", 'expected a duration, e.g. "1m30s"'),
        ("command: \"a 'b\"", "not a command line: No closing quotation"),
        ("command: '$'", "has a `$` before no name; write `$$` for a plain `$`"),
    ],
)  # fmt: skip
def test_wrong_value_is_a_problem(tmp_path, service, reason):
    found = problems(tmp_path, f"services:\n  db:\n    image: debian\n    {service}\n")

    assert len(found) == 1
    assert found[0].startswith(FILE)
    assert reason in found[0]


@pytest.mark.parametrize("folder", ["../tests", "..", "../solution/x"])
def test_agents_service_is_not_given_the_tests(tmp_path, folder):
    (tmp_path / "solution/x").mkdir(parents=True)

    found = problems(tmp_path, f"services: {{main: {{volumes: ['{folder}:/x']}}}}\n")

    assert found == [
        f"{FILE}, line 1: services.main.volumes: '{folder}' would show the agent the tests or the solution"
    ]


@pytest.mark.parametrize(
    "text",
    ["[]", "services: []", "services: {a: 3}", "services: {a b: {image: x}}", "services: {a: {}}", "{"],
)
def test_file_of_another_shape_is_a_problem(tmp_path, text):
    assert len(problems(tmp_path, text)) == 1


KEYS = ["image", "build", "command", "environment", "env_file", "healthcheck", "depends_on", "networks", "volumes",
        "tmpfs", "extra_hosts", "cap_add", "ulimits", "deploy", "mem_limit", "cpus", "restart", "network_mode",
        "platform", "scale", "user", "profiles", "shm_size"]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["${A:-1}", "a:/b", "./site:/x", "1" * 400, "\0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["resources", "limits", "context", "test", "default", "source"]), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    services=st.dictionaries(
        st.sampled_from(["main", "db"]),
        st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=3),
        max_size=2,
    ),
    rest=VALUES,
)
def test_no_file_breaks_the_reader(tmp_path_factory, services, rest):
    folder = tmp_path_factory.getbasetemp() / "compose-fuzz"
    text = yaml.safe_dump({"services": services, "networks": rest, "volumes": rest})
    findings = Findings()

    found = read_compose(written(folder, text), None, findings)

    assert (found is None) == bool(findings.problems)


def test_configs_and_secrets_are_files_of_the_task_at_their_place(tmp_path):
    text = (
        "services:\n  main: {}\n  db:\n    image: debian\n    volumes: ['v:/v']\n    secrets: [door]\n"
        "    configs: [words, {source: words, target: /etc/words}]\nvolumes: {v: {}}\n"
        "configs: {words: {file: ./site/a.txt}}\nsecrets: {door: {file: site/a.txt}}\n"
    )

    compose = resolved(tmp_path, text)

    mounts = [(mount.type, mount.source, mount.target) for mount in compose.services["db"].volumes]
    assert mounts == [
        ("volume", "v", "/v"),
        ("bind", "./site/a.txt", "/words"),
        ("bind", "./site/a.txt", "/etc/words"),
        ("bind", "site/a.txt", "/run/secrets/door"),
    ]


def test_keys_of_the_plugin_are_kept_apart_with_a_line_each(tmp_path):
    text = "services:\n  db:\n    image: debian\n    sysctls: {net.core.somaxconn: 9}\n    privileged: true\n"

    found = read_compose(written(tmp_path, text), None, Findings())

    assert found is not None
    assert found.by_plugin == {"db": {"sysctls": {"net.core.somaxconn": 9}}}
    assert found.needs_plugin == (
        f"{FILE}, line 4: services.db.sysctls: needs the docker compose plugin on the worker's host",
    )
    assert len(found.refused) == 1


def test_a_name_that_nobody_declares_has_its_default(tmp_path):
    text = "services: {main: {volumes: ['${PLACE:-data}:/d']}}\nvolumes: {data: {}}\n"

    assert problems(tmp_path, text) == []
    assert problems(tmp_path, text.replace(":-data", ":-other")) != []

import pytest

from benchflow_workers.sandbox.docker_dockerfile import (
    base_images,
    buildkit_features,
    line_of_feature,
    line_of_step,
    trusting,
)

MANY_STAGES = """\
# FROM commented:1
ARG BASE=debian
FROM --platform=linux/amd64 golang:1.22 AS Build
RUN echo FROM nothing
from \\
  python:3.12
COPY --from=Build /x /x
FROM scratch
FROM Build
FROM $BASE
"""


def test_base_images_leave_out_stages_scratch_and_variables() -> None:
    assert base_images(MANY_STAGES) == ["golang:1.22", "python:3.12"]


def test_certificate_is_trusted_from_the_first_step_of_every_stage() -> None:
    lines = trusting("FROM a:1 AS one\nRUN x\nFROM scratch\nFROM \\\n  b:2\nRUN y").splitlines()

    assert lines[0] == "FROM a:1 AS one"
    assert lines[1].startswith("COPY .bf-extra-ca.crt /usr/local/share/ca-certificates/")
    assert lines[3].startswith("ENV SSL_CERT_FILE=/etc/ssl/bf-ca-bundle.pem PIP_CERT=")
    assert lines[4:8] == ["RUN x", "FROM scratch", "FROM \\", "  b:2"]
    assert lines[8].startswith("COPY ")
    assert lines[11:] == ["RUN y"]


@pytest.mark.parametrize(
    ("line", "feature"),
    [
        ("RUN --mount=type=cache,target=/x pip install y", "RUN --mount"),
        ("RUN --network=none true", "RUN --network"),
        ("RUN <<EOF", "here-documents (<<EOF)"),
        ("COPY --chmod=755 a b", "COPY --chmod"),
        ("COPY --link a b", "COPY --link"),
        ("ADD --checksum=sha256:1 http://x y", "ADD --checksum"),
        ("COPY --exclude=*.txt a b", "COPY --exclude"),
    ],
)
def test_what_only_buildkit_builds_is_named(line: str, feature: str) -> None:
    assert buildkit_features(f"FROM x\n{line}\n") == [feature]


def test_plain_dockerfile_needs_no_buildkit() -> None:
    assert buildkit_features("FROM x\nRUN cat <a && echo --mount\nCOPY --chown=1 a b\n") == []


def test_step_is_found_by_its_first_words() -> None:
    text = "FROM x\n\nRUN apt-get update\nrun make all\n"

    assert [line_of_step(text, step) for step in ("RUN make all", "RUN none", "")] == [4, None, None]


def test_line_of_a_feature_is_that_of_its_instruction():
    text = "FROM x\n\n# a\n  RUN --mount=type=cache,target=/c true\nCOPY --link a b\n"

    assert line_of_feature(text, "RUN --mount") == 4
    assert line_of_feature(text, "COPY --link") == 5
    assert line_of_feature(text, "COPY --chmod") is None

"""Any text is a Dockerfile that is read, or a `SandboxError` that names its line."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox import docker_dockerfile
from benchflow_workers.sandbox.local import dockerfile

MANY = settings(max_examples=300, deadline=None, derandomize=True)

WORDS = st.sampled_from([
    "FROM a", "FROM a AS b", "from $X", "RUN", "COPY", "ADD", "ENV", "ARG X=1", "WORKDIR", "SHELL", "USER", "# escape=`",
    " ", "\\\n", "`\n", "\n", "\r\n", "[\"a\", \"b\"]", "[", "'", '"', "${X:-y}", "${", "$", "<<EOF", "EOF", "--from=b", "=",
    "A=b", ".", "/x", "\ufeff", "\0", "é",
])  # fmt: skip


@MANY
@given(st.lists(WORDS, max_size=12).map("".join) | st.lists(WORDS, max_size=12).map(" ".join))
def test_any_text(text):
    docker_dockerfile.base_images(text)
    docker_dockerfile.buildkit_features(text)
    docker_dockerfile.trusting(text)
    with suppress(SandboxError):
        instructions = dockerfile.parse(text)
        dockerfile.base_image(instructions)
        for item in instructions:
            with suppress(SandboxError):
                dockerfile.split(item)
            if item.keyword == "ENV":
                with suppress(SandboxError):
                    dockerfile.assignments(item, {"X": "'\" \\ $X"})

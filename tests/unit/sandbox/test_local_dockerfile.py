"""The Dockerfile subset: what is read, what is put in, what is refused by name."""

from __future__ import annotations

import pytest

from benchflow_client.errors import SandboxError
from benchflow_workers.sandbox.local.dockerfile import (
    Instruction,
    assignments,
    base_image,
    expand,
    parse,
    split,
)


def refused(text: str) -> SandboxError:
    with pytest.raises(SandboxError) as caught:
        parse(text)
    return caught.value


def test_instructions_keep_their_line_keyword_and_text() -> None:
    found = parse("# a comment\nfrom debian\n\nRUN echo 1\nWORKDIR\t/app\n")

    assert [(item.line, item.keyword, item.text) for item in found] == [
        (2, "FROM", "debian"),
        (4, "RUN", "echo 1"),
        (5, "WORKDIR", "/app"),
    ]


def test_continued_lines_are_joined_and_comments_between_them_dropped() -> None:
    found = parse("FROM x\nRUN apt-get update && \\\n  # why\n\n    echo two\nUSER a")

    assert found[1].text == "apt-get update &&     echo two"
    assert (found[1].line, found[2].line) == (2, 6)


def test_a_last_line_that_is_continued_still_counts() -> None:
    assert parse("FROM x\nRUN echo \\")[1].text == "echo"


def test_the_escape_directive_changes_the_continuation_character() -> None:
    found = parse("# escape=`\nFROM x\nRUN echo a `\n b\nCOPY a c:\\")

    assert found[1].text == "echo a  b"
    assert found[2].text == "a c:\\"


def test_other_directives_and_windows_line_ends_are_fine() -> None:
    found = parse("# syntax=docker/dockerfile:1\r\nFROM x\r\nRUN a\r\n")

    assert [item.text for item in found] == ["x", "a"]


def test_flags_are_taken_off_the_text() -> None:
    found = parse("FROM x\nCOPY --chown=1:2 --chmod=755 a b")[1]

    assert (found.text, dict(found.flags)) == ("a b", {"chown": "1:2", "chmod": "755"})


def test_exec_form_is_read_as_words_and_broken_json_as_shell() -> None:
    assert Instruction(1, "RUN", '["a", "b c"]').words() == ["a", "b c"]
    assert Instruction(1, "RUN", "[ -e x ]").words() is None
    assert Instruction(1, "RUN", "[1]").words() is None
    assert Instruction(1, "RUN", "echo").words() is None


@pytest.mark.parametrize(
    ("text", "feature"),
    [
        ("FROM a\nFROM b", "multi-stage"),
        ("FROM --platform=linux/arm64 a", "FROM --platform"),
        ("FROM a\nRUN --mount=type=cache,target=/x make", "RUN --mount"),
        ("FROM a\nCOPY --from=b /x /y", "COPY --from"),
        ("FROM a\nRUN <<EOF\necho\nEOF", "heredoc"),
        ("FROM a\nCOPY <<EOF /x\nhi\nEOF", "heredoc"),
        ("FROM a\nRUN cat <<EOF > /x\nhi\nEOF", "heredoc"),
    ],
)
def test_what_only_docker_can_do_is_refused_by_name(text: str, feature: str) -> None:
    error = refused(text)

    assert error.code == "task.unsupported"
    assert feature in error.message
    assert "Dockerfile line" in error.message
    assert "--sandbox docker" in error.hint


def test_a_shift_inside_quotes_is_no_heredoc() -> None:
    assert parse('FROM a\nRUN python3 -c "print(1 <<2)"')[1].keyword == "RUN"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("RUN x", "no FROM"),
        ("RUN x\nFROM a", "RUN stands before FROM"),
        ("FROM a\nFORM b", "FORM is no instruction"),
        ("FROM a\nRUN", "RUN has no arguments"),
        ("", "no FROM"),
    ],
)
def test_what_is_no_dockerfile_is_told_with_its_line(text: str, reason: str) -> None:
    error = refused(text)

    assert error.code == "sandbox.build_failed"
    assert reason in error.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$A/x", "1/x"),
        ("${A}x", "1x"),
        ("${NO:-word}", "word"),
        ("${NO-word}", "word"),
        ("${E:-word}", "word"),
        ("${E-word}", ""),
        ("${A:+word}", "word"),
        ("${NO+word}", ""),
        (r"\$A", "$A"),
        ("$NO", ""),
        ("100%", "100%"),
    ],
)
def test_variables_are_put_in(text: str, expected: str) -> None:
    assert expand(text, {"A": "1", "E": ""}) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1 B=two", {"A": "1", "B": "two"}),
        ("A=\"x y\" B='$V'", {"A": "x y", "B": "$V"}),
        ("A=$V", {"A": "a b"}),
        ('A="$V c"', {"A": "a b c"}),
        ("PATH=$PATH:/x", {"PATH": "/bin:/x"}),
        ("A=", {"A": ""}),
        ("A some words", {"A": "some words"}),
        (r"A=a\ b", {"A": "a b"}),
    ],
)
def test_env_is_read_in_both_forms(text: str, expected: dict[str, str]) -> None:
    found = assignments(Instruction(3, "ENV", text), {"V": "a b", "PATH": "/bin"})

    assert found == expected


@pytest.mark.parametrize("text", ["A", "A=1 B", "A='x"])
def test_an_env_that_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(SandboxError, match="Dockerfile line 3") as caught:
        assignments(Instruction(3, "ENV", text), {})

    assert caught.value.code == "sandbox.build_failed"


def test_words_keep_blanks_inside_quotes() -> None:
    assert split(Instruction(1, "COPY", '"a b" c # d')) == ["a b", "c", "#", "d"]


def test_the_base_image_may_come_from_an_argument() -> None:
    text = 'ARG TAG="12"\nARG NAME=debian:$TAG\nFROM ${NAME} AS main\nRUN x'

    assert base_image(parse(text)) == "debian:12"


def test_a_base_image_without_a_name_is_told() -> None:
    with pytest.raises(SandboxError, match="names no image"):
        base_image(parse("ARG NAME\nFROM $NAME"))

"""Masking is quick where there is nothing to mask, finds the same as one slow search, and shortens logs."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import pytest

from benchflow_workers.trial.redact import Redactor
from benchflow_workers.trial.secret_shapes import _SHAPES, Secrets

TOKEN = b"hf_abcdefghijklmnopqrstuvwxyz"
LINE = (
    b'{"level": "INFO", "input_tokens": 812, "url": "https://example.com/a", "msg": "task list of a disk"}\n'
)
PIECES = [
    *(
        b"sk-proj-abcdefghijklmnop1234",
        b"ghp_" + b"a1" * 20,
        b"github_pat_" + b"b" * 30,
        b"glpat-" + b"c" * 20,
    ),
    *(b"xoxb-1234567890-abc", b"AKIAIOSFODNN7EXAMPLE", b"ASIAIOSFODNN7EXAMPLE", b"AIza" + b"d" * 35, TOKEN),
    *(b"npm_" + b"e" * 36, b"dtn_" + b"f" * 24, b"eyJhbGciOiJI.eyJzdWIiOiI.dozjgNryP4J"),
    *(b"Bearer " + b"t" * 40, b"bearer " + b"u" * 40, b"://user:passw0rd@host", b"://a:b:c@@", b"x@y.z"),
    *(b"X-Api-Key: " + b"g7" * 12, b'x-api-key\\": \\"' + b"h" * 20, b"API_KEY=" + b"i1" * 12),
    *(
        b"apikey: " + b"j1" * 12,
        b"ApiKEY='" + b"k1" * 12,
        b"MY_TOKEN = " + b"l1" * 12,
        b"client_secret:" + b"m1" * 9,
    ),
    *(
        b"DB_PASSWORD=" + b"n1" * 12,
        b"-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----",
        b"hunter22",
    ),
    *(b" ", b"\n", b"k", b"_", b"-", b"sk-", b"eyJ", b"\\n", b'"', b"=", b"apikey", b"://", b"@", b"\xff"),
]


def test_every_secret_one_search_with_all_shapes_finds_is_found() -> None:
    """The quick search is only a way to the same matches."""
    seed = 20261129
    rng = random.Random(seed)
    values = [b"hunter22-and-more", b"hunter22"]
    slow = re.compile(b"|".join([*map(re.escape, values), *_SHAPES]))
    secrets = Secrets(values)
    for _ in range(1500):
        data = b"".join(rng.choice(PIECES) for _ in range(rng.randrange(1, 25)))
        start = rng.randrange(len(data))

        found = [match.span() for match in secrets.find(data, start)]

        assert found == [match.span() for match in slow.finditer(data, start)], (seed, data, start)


@pytest.mark.parametrize("piece", PIECES[:27], ids=lambda piece: piece[:12].decode("latin-1"))
def test_secret_is_found_at_the_very_start_and_end(piece: bytes) -> None:
    assert [match.group() for match in Secrets([b"hunter22"]).find(piece)] == [
        match.group() for match in re.compile(b"|".join([b"hunter22", *_SHAPES])).finditer(piece)
    ]


def test_ordinary_log_is_masked_at_many_times_the_speed_of_one_search() -> None:
    """A log of 300 MB once took two minutes, in which its worker could not be stopped."""
    data = LINE * (4_000_000 // len(LINE))
    redactor = Redactor(["hunter22-and-more"])
    started = time.process_time()

    assert redactor.bytes(data) == data

    assert time.process_time() - started < 0.2  # some 0.03 s; one search with all shapes takes 0.6 s


def test_long_log_keeps_its_head_and_tail_and_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "agent" / "log"
    path.parent.mkdir()
    path.write_bytes(b"first\n" + b"." * 100_000 + b"\nlast")
    path.chmod(0o640)

    Redactor(chunk_bytes=3000, kept_bytes=20_000).tree(tmp_path)

    marker = b"\n[80011 of 100011 bytes left out here]\n"
    assert path.read_bytes() == b"first\n" + b"." * 9_994 + marker + b"." * 9_995 + b"\nlast"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [item.name for item in path.parent.iterdir()] == ["log"]


def test_artifact_a_task_asked_for_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "artifacts" / "model.bin"
    path.parent.mkdir()
    path.write_bytes(b"0" * 100_000)

    Redactor(chunk_bytes=3000, kept_bytes=20_000).tree(tmp_path)

    assert path.read_bytes() == b"0" * 100_000


@pytest.mark.parametrize("side", ["head", "tail"])
@pytest.mark.parametrize(
    "secret", [TOKEN, b"hunter22", b"-----BEGIN PRIVATE KEY-----\nab\n-----END PRIVATE KEY-----"]
)
def test_secret_on_a_cut_leaves_no_part(tmp_path: Path, side: str, secret: bytes) -> None:
    path, size, kept = tmp_path / "log", 100_000, 20_000
    for offset in (0, 1, len(secret) // 2, len(secret) - 1, len(secret)):
        start = (kept // 2 if side == "head" else size - kept // 2) - offset
        path.write_bytes(b"." * (start - 1) + b" " + secret + b" " + b"." * (size - start - len(secret) - 1))

        Redactor(["hunter22"], chunk_bytes=3000, kept_bytes=kept).tree(tmp_path)

        rest = re.sub(rb"\n\[\d+ of \d+ bytes left out here\]\n|\[redacted\]", b"", path.read_bytes())
        assert set(rest) <= set(b". "), (offset, rest.strip(b"."))


def test_tree_of_any_depth_is_masked(tmp_path: Path) -> None:
    folder = tmp_path.joinpath(*["d"] * 1500)
    for parent in reversed([folder, *list(folder.parents)[:1499]]):
        parent.mkdir()
    (folder / "log").write_bytes(b"hunter22")

    Redactor(["hunter22"]).tree(tmp_path)

    assert (folder / "log").read_bytes() == b"[redacted]"
    for parent in [folder, *list(folder.parents)[:1499]]:
        (parent / "log").unlink(missing_ok=True)
        parent.rmdir()

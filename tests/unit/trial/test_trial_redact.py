"""Secrets are masked wherever they stand, in files of any size and in any bytes."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from benchflow_workers.trial.redact import Redactor

CHUNK = 64 << 10
JWT = b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
PEM = b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\n%s\n-----END RSA PRIVATE KEY-----"

SHAPES = [
    b"sk-proj-abcdefghijklmnop1234",
    b"sk-ant-api03-AbCdEfGhIjKlMnOpQrSt",
    b"ghp_abcdefghijklmnopqrstuvwxyz0123456789",
    b"github_pat_11AAAAAAA0abcdefghijkl_mnop",
    b"glpat-abcdefghijklmnop12",
    b"xoxb-1234567890-abcdef",
    b"AKIAIOSFODNN7EXAMPLE",
    b"AIzaSyA1234567890abcdefghijklmnopqrstuv",
    b"hf_abcdefghijklmnopqrstuvwxyz",
    b"npm_abcdefghijklmnopqrstuvwxyz0123456789",
    JWT,
    PEM % (b"MIIEpAIBAAKCAQEA0123456789abcdef\n" * 40),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape[:12].decode())
def test_secret_nobody_named_is_known_by_its_shape(shape: bytes) -> None:
    assert Redactor().bytes(b"before " + shape + b" after") == b"before [redacted] after"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abcdef0123456789xyz==", "Authorization: Bearer [redacted]"),
        ("redis://user:hunter22@host:6379/0", "redis://[redacted]@host:6379/0"),
        ("https://example.com:8080/path", "https://example.com:8080/path"),
        ("bearer of bad news", "bearer of bad news"),
        ("sk-short", "sk-short"),
        (r'{"log": "a\nsk-abcdefghijklmnop1"}', r'{"log": "a\n[redacted]"}'),
        ("task-list-of-many-things", "task-list-of-many-things"),
    ],
)
def test_what_surrounds_a_secret_stays_and_ordinary_text_too(text: str, masked: str) -> None:
    assert Redactor().text(text) == masked


@pytest.mark.parametrize(
    "value", ["a.b*c+d?", "(group)[set]", "back\\slash", "$^{3}|x", "schlüssel-ß", "\ud800xyzzy"]
)
def test_value_is_found_as_it_is_whatever_its_characters(value: str) -> None:
    redactor = Redactor([value])

    assert redactor.bytes(b"<" + value.encode("utf-8", "surrogatepass") + b">") == b"<[redacted]>"
    assert redactor.text("aXbcccd") == "aXbcccd"


def test_value_that_is_part_of_a_longer_one_leaves_nothing_of_it() -> None:
    redactor = Redactor(["secret", "secret-with-more", ""])

    assert redactor.text("secret-with-more secret") == "[redacted] [redacted]"


def test_bytes_that_are_no_text_are_kept() -> None:
    data = bytes(range(256)) + b"hunter2-hunter2" + b"\xff\xfe\x00"

    assert Redactor(["hunter2-hunter2"]).bytes(data) == bytes(range(256)) + b"[redacted]" + b"\xff\xfe\x00"


def test_value_with_quotes_is_found_where_json_escapes_it() -> None:
    redactor = Redactor(['pass"word\n1'])

    assert redactor.text('{"key": "pass\\"word\\n1"}') == '{"key": "[redacted]"}'


def test_json_values_are_masked_in_depth_keys_included() -> None:
    value = {"k": ["hunter22", {"hunter22": ("hunter22", 1.5, None, True)}]}

    masked = Redactor(["hunter22"]).value(value)

    assert masked == {"k": ["[redacted]", {"[redacted]": ["[redacted]", 1.5, None, True]}]}


def test_lone_surrogate_becomes_text_that_can_be_written() -> None:
    Redactor().text("a\ud800b").encode("utf-8")


def test_tree_masks_every_file_and_rewrites_only_those_with_a_secret(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    dirty, clean = tmp_path / "deep" / "er" / "log", tmp_path / "clean"
    dirty.write_bytes(b"\xffhunter22\n")
    dirty.chmod(0o750)
    clean.write_bytes(b"nothing here")
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_bytes(b"hunter22")
    (tmp_path / "link").symlink_to(outside)
    before = clean.stat().st_mtime_ns, clean.stat().st_ino

    Redactor(["hunter22"]).tree(tmp_path)

    assert dirty.read_bytes() == b"\xff[redacted]\n"
    assert dirty.stat().st_mode & 0o777 == 0o750
    assert (clean.stat().st_mtime_ns, clean.stat().st_ino) == before
    assert outside.read_bytes() == b"hunter22"


@pytest.mark.parametrize("secret", [b"hunter22", *SHAPES], ids=lambda secret: secret[:12].decode())
def test_secret_on_the_border_of_two_chunks_leaves_no_part(tmp_path: Path, secret: bytes) -> None:
    """A file is read in pieces; whatever place a piece ends at, the secret is masked as a whole."""
    redactor, path = Redactor(["hunter22"], chunk_bytes=CHUNK), tmp_path / "log"
    for offset in (1, len(secret) // 2, len(secret) - 1):
        start = CHUNK - offset
        path.write_bytes(b"." * (start - 1) + b" " + secret + b" tail" + b"." * 40_000)

        redactor.tree(tmp_path)

        assert path.read_bytes() == b"." * (start - 1) + b" [redacted] tail" + b"." * 40_000, offset


def test_large_file_is_masked_like_a_small_one(tmp_path: Path) -> None:
    seed = 20261129
    rng = random.Random(seed)
    words = [*SHAPES, b"hunter22", b"hunter22-and-more", b"Bearer " + b"t" * 40, b"redis://u:passw0rd@h"]
    text = b"".join(
        rng.choice(words) + b" "
        if rng.random() < 0.2
        else rng.randbytes(rng.randrange(1, 3000)).hex().encode() + b" "
        for _ in range(200)
    )
    redactor = Redactor(["hunter22", "hunter22-and-more"], chunk_bytes=CHUNK)
    path = tmp_path / ("n" * 250)
    path.write_bytes(text)
    path.chmod(0o640)
    assert len(text) > 3 * CHUNK

    redactor.tree(tmp_path)

    assert path.read_bytes() == redactor.bytes(text), f"seed {seed}"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_secret_longer_than_any_shape_is_masked_across_chunks(tmp_path: Path) -> None:
    secret = "s3" * 30_000
    path = tmp_path / "log"
    path.write_bytes(b"." * (4 * CHUNK - 50_000) + secret.encode() + b"tail")

    Redactor([secret], chunk_bytes=CHUNK).tree(tmp_path)

    assert path.read_bytes() == b"." * (4 * CHUNK - 50_000) + b"[redacted]tail"


@pytest.mark.parametrize(
    "bait", [b"eyJ", b"-----BEGIN PRIVATE KEY-----\n", b"://a:b", b"-----BEGIN ", b"sk-", b"a."]
)
def test_hostile_output_costs_time_only_in_proportion_to_its_size(bait: bytes) -> None:
    """Four times the bytes may take some four times as long, not sixteen: the whole worker waits for it."""
    redactor = Redactor(["hunter22"])

    def seconds(size: int) -> float:
        data = (bait * (size // len(bait) + 1))[:size]
        started = time.process_time()
        redactor.bytes(data)
        return time.process_time() - started

    small, large = seconds(20_000), seconds(80_000)

    assert large < 10 * max(small, 0.02)

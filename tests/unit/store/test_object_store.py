"""What the S3 store makes of services that refuse, fail or lie; each is a loopback server."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from benchflow_client.errors import (
    ObjectExistsError,
    ObjectNotFoundError,
    StoreError,
    StoreFullError,
)
from benchflow_client.store.options import S3Options
from benchflow_client.store.registry import open_store
from benchflow_client.store.s3 import ObjectStore

KEY_ID, SECRET, TOKEN = "AKIASECRETNAME", "wJalrXUtnFEMI-secret", "FwoGZXIvYXdzE-token"

Answer = tuple[int, dict[str, str], bytes]
Responder = Callable[[BaseHTTPRequestHandler], Answer]


@contextmanager
def serving(respond: Responder) -> Generator[str, None, None]:
    """Serve every request with what `respond` returns; yields the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            status, headers, body = respond(self)
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = reply

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error_body(code: str, text: str = "why") -> bytes:
    return f"<Error><Code>{code}</Code><Message>{text}</Message></Error>".encode()


def store_at(endpoint: str, *, retries: int = 0) -> ObjectStore:
    options = S3Options(
        endpoint=endpoint,
        access_key_id=SecretStr(KEY_ID),
        secret_access_key=SecretStr(SECRET),
        session_token=SecretStr(TOKEN),
    )
    return ObjectStore("s3://bench/runs", options, retries=retries)


def raised(store: ObjectStore, *, call: str = "put") -> StoreError:
    with pytest.raises(StoreError) as caught:
        getattr(store, call)(*(("job/k", b"1") if call in {"put", "create"} else ("job/k",)))
    return caught.value


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (507, "XMinioStorageFull"),
        (400, "XMinioAdminBucketQuotaExceeded"),
        (403, "QuotaExceeded"),
        (507, "Whatever"),
    ],
)
def test_service_without_space_is_a_full_store(status: int, code: str) -> None:
    with serving(lambda _: (status, {}, error_body(code))) as endpoint:
        error = raised(store_at(endpoint))

    assert isinstance(error, StoreFullError)
    assert "s3://bench/runs" in error.message
    assert "Free space" in error.hint


@pytest.mark.parametrize(
    ("status", "code", "why"),
    [
        (404, "NoSuchBucket", "the bucket does not exist"),
        (403, "InvalidAccessKeyId", "the access key is not known there"),
        (403, "SignatureDoesNotMatch", "the secret key is not the right one"),
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong"),
        (401, "Whatever", "access is denied"),
        (403, "AccessDenied", "access is denied"),
        (500, "InternalError", "500 Internal Server Error, InternalError"),
        (400, "EntityTooLarge", "400 Bad Request, EntityTooLarge"),
    ],
)
@pytest.mark.parametrize("call", ["put", "get"])
def test_refusal_is_told_with_its_cause(status: int, code: str, why: str, call: str) -> None:
    with serving(lambda _: (status, {}, error_body(code))) as endpoint:
        error = raised(store_at(endpoint), call=call)

    verb = {"put": "write", "get": "read"}[call]
    assert error.message == f"Cannot {verb} 'job/k' in the store s3://bench/runs: {why}."
    assert error.hint
    assert not isinstance(error, ObjectNotFoundError)


def test_absent_object_is_not_found_only_when_reading() -> None:
    with serving(lambda _: (404, {}, error_body("NoSuchKey"))) as endpoint:
        store = store_at(endpoint)

        assert isinstance(raised(store, call="get"), ObjectNotFoundError)
        assert not store.exists("job/k")
        assert not isinstance(raised(store, call="put"), ObjectNotFoundError)


def test_no_credential_is_in_any_error_or_traceback() -> None:
    """The service sends back what it got: key id, token and, as a bad proxy might, the secret."""

    def echo(request: BaseHTTPRequestHandler) -> Answer:
        got = f"{request.headers['authorization']} {request.headers['x-amz-security-token']} {SECRET}"
        assert KEY_ID in got
        assert TOKEN in got
        return 400, {}, error_body(got[:40] + SECRET, got)

    with serving(echo) as endpoint, pytest.raises(StoreError) as caught:
        store_at(endpoint).put("job/k", b"1")

    shown = "".join(traceback.format_exception(caught.value)) + caught.value.hint
    for secret in (KEY_ID, SECRET, TOKEN):
        assert secret not in shown
    assert "***" in caught.value.message


def test_options_do_not_show_their_secrets() -> None:
    options = S3Options(
        access_key_id=SecretStr(KEY_ID), secret_access_key=SecretStr(SECRET), session_token=SecretStr(TOKEN)
    )

    assert KEY_ID not in repr(options)
    assert SECRET not in repr(options)
    assert TOKEN not in options.model_dump_json()


def test_closed_port_says_that_nothing_answers() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{probe.getsockname()[1]}"

        error = raised(store_at(endpoint, retries=1))

    assert "nothing answers at the endpoint" in error.message


def test_passing_failure_is_repeated() -> None:
    answers = iter([(503, {}, b"SlowDown"), (500, {}, b""), (200, {"etag": '"1"'}, b"")])
    with serving(lambda _: next(answers)) as endpoint:
        store_at(endpoint, retries=3).put("job/k", b"1")

    assert next(answers, None) is None


class LostAnswer:
    """A service that stores an object and loses the first answer."""

    def __init__(self, *, author: str | None = None) -> None:
        self.author = author  # None = whoever sends the object

    def __call__(self, request: BaseHTTPRequestHandler) -> Answer:
        if request.command != "PUT":
            modified = {"last-modified": "Sun, 29 Nov 2026 10:00:00 GMT", "etag": '"1"'}
            return 200, {"x-amz-meta-benchflow-write": str(self.author), **modified}, b""
        assert request.headers["if-none-match"] == "*"
        if self.author is None:
            self.author = request.headers["x-amz-meta-benchflow-write"]
            return 500, {}, b""
        return 412, {}, error_body("PreconditionFailed")


def test_repeated_creation_that_meets_its_own_object_succeeds() -> None:
    with serving(LostAnswer()) as endpoint:
        store_at(endpoint, retries=2).create("job/spec.json", b"mine")


def test_creation_that_meets_the_object_of_another_is_refused() -> None:
    with serving(LostAnswer(author="somebody-else")) as endpoint, pytest.raises(ObjectExistsError):
        store_at(endpoint, retries=2).create("job/spec.json", b"mine")


def test_answer_that_is_cut_short_leaves_no_file(tmp_path: Path) -> None:
    headers = {"last-modified": "Sun, 29 Nov 2026 10:00:00 GMT", "etag": '"1"', "content-length": "500000"}

    def cut(request: BaseHTTPRequestHandler) -> Answer:
        request.close_connection = True
        return 200, headers, b"x" * 1000

    with serving(cut) as endpoint, pytest.raises(StoreError, match="read 'job/k'"):
        store_at(endpoint).get_file("job/k", tmp_path / "target")

    assert list(tmp_path.iterdir()) == []


def test_key_that_no_folder_can_hold_stops_a_listing_and_leaves_nothing(tmp_path: Path) -> None:
    listing = (
        b"<ListBucketResult><Name>bench</Name><Prefix>runs/job/</Prefix><KeyCount>1</KeyCount>"
        b"<MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated><Contents><Key>runs/job/../../x</Key>"
        b"<LastModified>2026-11-29T10:00:00.000Z</LastModified><ETag>1</ETag><Size>1</Size></Contents>"
        b"</ListBucketResult>"
    )

    with serving(lambda _: (200, {}, listing)) as endpoint, pytest.raises(StoreError, match="list 'job'"):
        store_at(endpoint).get_tree("job/", tmp_path / "out")

    assert not (tmp_path / "out").exists()


def test_object_that_vanishes_after_the_listing_is_left_out(tmp_path: Path) -> None:
    listing = (
        b"<ListBucketResult><Name>bench</Name><KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys>"
        b"<IsTruncated>false</IsTruncated><Contents><Key>runs/job/gone</Key>"
        b"<LastModified>2026-11-29T10:00:00.000Z</LastModified><ETag>1</ETag><Size>1</Size></Contents>"
        b"</ListBucketResult>"
    )

    def respond(request: BaseHTTPRequestHandler) -> Answer:
        is_list = re.search(r"list-type=2", request.path)
        return (200, {}, listing) if is_list else (404, {}, error_body("NoSuchKey"))

    with serving(respond) as endpoint:
        assert store_at(endpoint).get_tree("job", tmp_path / "out") == 0


@pytest.mark.parametrize(
    "url", ["s3://", "s3:///prefix", "s3://key:secret@bucket/x", "s3://bucket:80/x", "s3://bucket/x?y=1"]
)
def test_address_with_more_or_less_than_bucket_and_prefix_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match="S3 store") as caught:
        open_store(url)

    assert "secret" not in caught.value.message + caught.value.hint


def test_prefix_that_climbs_is_refused() -> None:
    with pytest.raises(StoreError, match="cannot be a key"):
        open_store("s3://bucket/../x")


def test_url_has_no_last_slash() -> None:
    assert open_store("s3://bucket").url == "s3://bucket"
    assert open_store("s3://bucket/a/b/").url == "s3://bucket/a/b"


@pytest.mark.parametrize("endpoint", ["minio:9000", "ftp://minio", "https://", "https://key:secret@minio"])
def test_endpoint_that_is_no_plain_address_is_refused(endpoint: str) -> None:
    with pytest.raises(StoreError, match="endpoint") as caught:
        open_store("s3://bucket", s3=S3Options(endpoint=endpoint))

    assert "secret" not in caught.value.message + caught.value.hint


def test_plain_http_is_for_this_machine_unless_allowed() -> None:
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "[::1]"):
        open_store("s3://bucket", s3=S3Options(endpoint=f"http://{host}:9000"))
    open_store("s3://bucket", s3=S3Options(endpoint="https://minio.lab"))
    open_store("s3://bucket", s3=S3Options(endpoint="http://minio:9000", allow_http=True))

    with pytest.raises(StoreError, match="minio is not encrypted"):
        open_store("s3://bucket", s3=S3Options(endpoint="http://minio:9000"))


def test_endpoint_of_the_settings_beats_one_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    with serving(lambda _: (200, {"etag": '"1"'}, b"")) as endpoint:
        store_at(endpoint).put("job/k", b"1")


FORKED = """
import os, sys
from benchflow_client.errors import StoreError
from benchflow_client.store.options import S3Options
from benchflow_client.store.s3 import ObjectStore
store = ObjectStore("s3://bench", S3Options(endpoint=sys.argv[1]), retries=0)
try:
    store.get("k")
except StoreError:
    pass
child = os.fork()
if child == 0:
    try:
        store.get("k")
    except StoreError as error:
        os._exit(42 if "forked" in error.message else 1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_forked_process_is_told_instead_of_waiting_for_ever() -> None:
    with serving(lambda _: (400, {}, b"")) as endpoint:
        run = subprocess.run([sys.executable, "-c", FORKED, endpoint], timeout=30, check=False)

    assert run.returncode == 42

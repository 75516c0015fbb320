"""The parts that conftest.py hands to all tests are real."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

pytest_plugins = ["pytester"]
CONFTEST = Path(__file__).parents[1] / "conftest.py"


def test_the_private_redis_wants_its_password_and_runs_scripts(redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        assert client.eval("return ARGV[1]", 0, "7") == b"7"

    anonymous = redis_url.replace(redis_url.split("@", maxsplit=1)[0] + "@", "redis://")
    with redis.Redis.from_url(anonymous) as client, pytest.raises(redis.AuthenticationError):
        client.ping()


@pytest.mark.parametrize(
    ("forbidden", "outcomes"), [("0", {"skipped": 1, "passed": 1}), ("1", {"errors": 1, "passed": 1})]
)
def test_a_skip_is_a_failure_where_skipping_is_forbidden(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, forbidden: str, outcomes: dict[str, int]
) -> None:
    monkeypatch.setenv("BENCHFLOW_CI_NO_SKIP", forbidden)
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.skipif(True, reason="a part is missing")
        def test_left_out(): ...

        def test_kept(): ...
        """
    )

    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")

    assert {key: value for key, value in result.parseoutcomes().items() if key != "warnings"} == outcomes


def test_a_missing_part_skips_with_its_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BENCHFLOW_CI_NO_SKIP", "0")
    monkeypatch.setenv("PATH", "/nonexistent")
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makeini("[pytest]\nmarkers =\n  docker: x\n  browser: x\n")
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.docker
        def test_with_docker(): ...

        @pytest.mark.browser
        def test_with_browser(): ...
        """
    )

    result = pytester.runpytest_subprocess("-rs", "-p", "no:cacheprovider")

    result.assert_outcomes(skipped=2)
    result.stdout.fnmatch_lines(["*no docker command on PATH*", "*chromium*"])


@pytest.mark.parametrize(("condition", "outcome"), [("True", 0), ("False", 1)])
def test_the_coverage_floor_is_asked_only_of_complete_runs(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, condition: str, outcome: int
) -> None:
    """Without Docker a user's run cannot reach the floor, and that is no fault of the code."""
    monkeypatch.setenv("BENCHFLOW_CI_NO_SKIP", "0")
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(module="def unused():\n    return 1\n")
    pytester.makepyfile(
        f"""
        import module
        import pytest

        @pytest.mark.skipif({condition}, reason="a part is missing")
        def test_left_out(): ...
        """
    )

    result = pytester.runpytest_subprocess("--cov=module", "--cov-fail-under=99", "-p", "no:cacheprovider")

    assert result.ret == outcome

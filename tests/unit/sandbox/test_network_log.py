"""What is kept of refused attempts."""

from __future__ import annotations

from datetime import datetime, timedelta

from benchflow_workers.sandbox.network_log import EgressLog, Refusal, take_refusals


def test_attempt_is_kept_with_its_time_and_rule_until_it_is_taken() -> None:
    log = EgressLog()
    log.add(Refusal("a.org", 443, "denied-host"))
    log.add(Refusal("a.org", 443, "denied-url", "https://a.org/x"))

    first, second = log.take()

    assert datetime.fromisoformat(first.pop("time")).utcoffset() == timedelta(0)
    assert first == {"host": "a.org", "port": 443, "rule": "denied-host"}
    assert second | {"time": ""} == {
        "time": "",
        "host": "a.org",
        "url": "https://a.org/x",
        "rule": "denied-url",
    }
    assert log.take() == ()


def test_log_of_an_agent_that_tries_for_ever_stays_small() -> None:
    log = EgressLog()
    for number in range(1003):
        log.add(Refusal(f"{number}.org", 53, "denied-host"))
    log.add(Refusal("x" * 5000, 53, "denied-host"))

    lines = log.take()

    assert len(lines) == 1001
    assert lines[999]["host"] == "999.org"
    assert lines[1000] == {"left_out": 4}


def test_long_names_and_urls_are_cut() -> None:
    log = EgressLog()
    log.add(Refusal("x" * 5000, 80, "denied-url", "y" * 5000))

    (line,) = log.take()
    assert (len(line["host"]), len(line["url"])) == (2049, 2049)


def test_sandbox_that_keeps_no_refusals_has_none() -> None:
    assert take_refusals(object()) == ()

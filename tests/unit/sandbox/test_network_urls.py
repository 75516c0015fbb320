"""Which requests a blocked URL blocks, however they are spelled."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchflow_workers.sandbox.network import NetworkPolicy
from benchflow_workers.sandbox.network_urls import hosts_of, is_blocked, shown_url

URLS = ("https://a.org/team/Repo", "http://b.org/docs/", "https://c.org")


@pytest.mark.parametrize(
    "target",
    [
        "/team/Repo",
        "/team/repo.git/info/refs?service=git-upload-pack",
        "/TEAM/REPO/",
        "//team//repo",
        "/team/./repo",
        "/x/../team/repo",
        "/team/repo/../other",
        "/team%2Frepo",
        "/%74eam/repo",
        "/%2574eam/repo",
        "/team\\repo",
        "/team;v=1/repo",
        "/team/repo?x=/other",
        "/team/repo#top",
        "team/repo",
        "https://a.org/team/repo",
        "http://a.org/team/repo?x",
    ],
)
def test_request_that_a_server_may_read_as_the_blocked_page_is_blocked(target: str) -> None:
    assert is_blocked(URLS, "a.org", target)


@pytest.mark.parametrize(
    "target", ["/", "/team", "/team/other", "/x?y=/team/Repo", "/x#/team/Repo", "*", "/teamRepo"]
)
def test_other_page_of_the_host_is_not_blocked(target: str) -> None:
    assert not is_blocked(URLS, "a.org", target)


def test_url_of_a_folder_blocks_the_folder_itself_and_what_is_in_it() -> None:
    assert is_blocked(URLS, "b.org", "/docs")
    assert is_blocked(URLS, "b.org", "/docs/a")
    assert not is_blocked(URLS, "b.org", "/docsearch")


def test_url_without_a_path_blocks_every_page_of_its_host_and_of_no_other() -> None:
    assert is_blocked(URLS, "c.org", "/")
    assert is_blocked(URLS, "c.org", "/any?x")
    assert not is_blocked(URLS, "www.c.org", "/")
    assert hosts_of(URLS) == {"a.org", "b.org", "c.org"}


@given(st.text(max_size=60))
def test_no_target_is_too_odd_to_be_judged(target: str) -> None:
    assert is_blocked(URLS, "c.org", target)
    assert isinstance(is_blocked(URLS, "a.org", target), bool)


def test_log_shows_urls_without_what_may_be_secret() -> None:
    assert shown_url("https", "a.org", "/x/y?token=1#z") == "https://a.org/x/y"
    assert shown_url("https", "a.org", "https://a.org?token=1") == "https://a.org/"


def test_policy_names_the_hosts_whose_tls_is_opened() -> None:
    policy = NetworkPolicy("denylist", blocked_urls=("https://A.org/x", "http://a.org/y"))

    assert policy.opened_hosts == {"a.org"}
    assert not policy.permits_url("A.ORG.", "/x/1")
    assert policy.permits_url("a.org", "/z")
    assert NetworkPolicy().opened_hosts == frozenset()

"""Whose tokens a job asks for."""

from __future__ import annotations

import pytest

from benchflow_client.schema.job import JobSpec
from benchflow_workers.gateway.target import Capture, Target
from benchflow_workers.trial.models import capture_of


@pytest.mark.parametrize(
    ("setting", "of_a_server", "of_a_provider"),
    [
        ("off", Capture.NOTHING, Capture.NOTHING),
        ("auto", Capture.TOKENS, Capture.NOTHING),
        ("on", Capture.TOKENS, Capture.LOGPROBS),
    ],
)
def test_token_ids_are_asked_only_of_a_server_of_ones_own(
    setting: str, of_a_server: Capture, of_a_provider: Capture
) -> None:
    spec = JobSpec.model_validate({"tasks": "t", "agent": "nop", "capture_tokens": setting})

    def found(provider: str) -> Capture:
        return capture_of(spec, Target(provider, "m", {"openai-completions": "http://x/v1"}, None))

    assert (found("custom"), found("openai")) == (of_a_server, of_a_provider)

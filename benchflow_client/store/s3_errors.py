"""Errors of an S3 service, told in our words; the one place that reads its texts."""

from __future__ import annotations

import re

from benchflow_client.errors import ObjectNotFoundError, StoreError, StoreFullError

_FULL = ("XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "QuotaExceeded", "507 Insufficient Storage")
"""Texts of services without space: MinIO, MinIO with a quota, Ceph, and the HTTP status."""

_KNOWN = (
    ("NoSuchBucket", "the bucket does not exist", "Create the bucket, or correct the store's address."),
    ("InvalidAccessKeyId", "the access key is not known there", "Check the access key and the endpoint."),
    ("SignatureDoesNotMatch", "the secret key is not the right one", "Check the secret access key."),
    ("RequestTimeTooSkewed", "this machine's clock is wrong", "Set the clock (NTP) and try again."),
    ("401 Unauthorized", "access is denied", "Check the access key and the secret access key."),
    ("403 Forbidden", "access is denied", "Check the keys and what they may do below the prefix."),
    ("kind: Connect", "nothing answers at the endpoint", "Start the service, or correct the endpoint."),
    ("kind: Timeout", "the service did not answer in time", "Check the service and the network."),
    ("TimedOut", "the service did not answer in time", "Check the service and the network."),
)
"""Texts of errors with a cause a person can remove, narrowest first: (text, why, what to do)."""

_BRIEF_CHARACTERS = 200
"""Most of a foreign text that is passed on."""


class ServiceErrors:
    """Turns texts of one service into errors that hold no credential.

    Args:
        url: Address of the store, without credentials.
        secrets: What must not appear in any message.
    """

    def __init__(self, url: str, secrets: tuple[str, ...]) -> None:
        self._url = url
        self._secrets = secrets

    def absent(self, key: str) -> ObjectNotFoundError:
        """Return the error for a key that has no object."""
        return ObjectNotFoundError(
            f"There is no {key!r} in the store {self._url}.",
            hint="Check the name of the job and the store: `bench jobs` lists what is there.",
        )

    def is_bucket_missing(self, text: str) -> bool:
        """Return whether "not found" speaks of the bucket rather than of an object."""
        return "NoSuchBucket" in text

    def explain(self, action: str, text: str) -> StoreError:
        """Return our error for a failed call.

        Args:
            action: What was tried, e.g. ``"write 'job/spec.json'"``.
            text: What the client library said; it may quote requests and answers.
        """
        what = f"Cannot {action} in the store {self._url}"
        if any(phrase in text for phrase in _FULL):
            return StoreFullError(
                f"{what}: it has no space left.",
                hint="Free space in the bucket and run the job again; everything stored before is whole.",
            )
        for phrase, why, hint in _KNOWN:
            if phrase in text:
                return StoreError(f"{what}: {why}.", hint=hint)
        return StoreError(
            f"{what}: {self._brief(text)}.", hint="Check the service and its log, then try again."
        )

    def _brief(self, text: str) -> str:
        status = re.search(r"status code: (\d{3} [^:]*)", text)
        code = re.search(r"<Code>([^<]{1,80})</Code>", text)
        words = [found[1].strip() for found in (status, code) if found]
        brief = ", ".join(words) or text.partition("\n")[0].rpartition(" - ")[2] or "no reason given"
        for secret in self._secrets:
            brief = brief.replace(secret, "***")
        return brief[:_BRIEF_CHARACTERS].rstrip(". ")

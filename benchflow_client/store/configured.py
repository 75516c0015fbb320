"""The store the settings name."""

from __future__ import annotations

from pydantic import SecretStr

from benchflow_client.settings import Settings
from benchflow_client.store.base import Store
from benchflow_client.store.options import S3Options
from benchflow_client.store.registry import open_store


def configured_store(settings: Settings, url: str) -> Store:
    """Open a store with the settings' S3 credentials, where it is one.

    Args:
        settings: Endpoint and credentials.
        url: Folder or `s3://bucket/prefix`.
    """
    key_id = settings.s3_access_key_id
    options = S3Options(
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key_id=None if key_id is None else SecretStr(key_id),
        secret_access_key=settings.s3_secret_access_key,
        allow_http=settings.s3_allow_http,
    )
    return open_store(url, s3=options)

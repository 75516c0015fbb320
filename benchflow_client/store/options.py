"""How to reach an S3-compatible service: filled from the settings, used by `store.s3`."""

from __future__ import annotations

from pydantic import Field, SecretStr

from benchflow_client.schema.base import Record


class S3Options(Record):
    """Endpoint and credentials of an S3-compatible service; never stored, never sent."""

    endpoint: str | None = Field(
        default=None, description="Address of the service, e.g. https://minio.lab:9000; None = AWS."
    )
    region: str = Field(default="us-east-1", description="Region; most other services accept any.")
    access_key_id: SecretStr | None = Field(
        default=None, description="Access key; None = as the AWS tools find it (files, role, ...)."
    )
    secret_access_key: SecretStr | None = Field(default=None, description="Secret of the access key.")
    session_token: SecretStr | None = Field(
        default=None, description="Token of temporary credentials; None = lasting ones."
    )
    allow_http: bool = Field(
        default=False,
        description="Allow http:// beyond this machine, e.g. inside a cluster; keys stay signed, data is readable.",
    )

    def secret_values(self) -> tuple[str, ...]:
        """Return what must not appear in any text: all parts of the credentials."""
        parts = (self.access_key_id, self.secret_access_key, self.session_token)
        return tuple(part.get_secret_value() for part in parts if part)

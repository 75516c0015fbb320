"""What must be known of a Dockerfile: its base images, and what only BuildKit builds."""

from __future__ import annotations

import re
from collections.abc import Iterator

CA_FILE = ".bf-extra-ca.crt"
"""Name in the build context of the certificate to trust."""

CA_BUNDLE = ".bf-ca-bundle.pem"
"""Name in the build context of all certificates to trust."""

_BUNDLE = "/etc/ssl/bf-ca-bundle.pem"
_BUNDLE_VARIABLES = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "GIT_SSL_CAINFO",
    "npm_config_cafile",
)
# The system bundle itself is left alone: installing `ca-certificates` writes it anew, from the folder used here.
_TRUST = (
    f"COPY {CA_FILE} /usr/local/share/ca-certificates/bf-extra-ca.crt",
    f"COPY {CA_BUNDLE} {_BUNDLE}",
    "ENV " + " ".join(f"{name}={_BUNDLE}" for name in _BUNDLE_VARIABLES),
)
_FROM = re.compile(r"^\s*FROM\s+(?:--\S+\s+)*(?P<image>\S+)(?:\s+AS\s+(?P<stage>\S+))?", re.IGNORECASE)
_BUILDKIT_ONLY = {
    "RUN --mount": re.compile(r"^\s*RUN\s+.*--mount=", re.IGNORECASE | re.MULTILINE),
    "RUN --network": re.compile(r"^\s*RUN\s+--network=", re.IGNORECASE | re.MULTILINE),
    "here-documents (<<EOF)": re.compile(r"^\s*(RUN|COPY|ADD)\b.*<<-?[\"']?\w", re.IGNORECASE | re.MULTILINE),
    "COPY --chmod": re.compile(r"^\s*(COPY|ADD)\s+.*--chmod=", re.IGNORECASE | re.MULTILINE),
    "COPY --link": re.compile(r"^\s*(COPY|ADD)\s+.*--link\b", re.IGNORECASE | re.MULTILINE),
    "ADD --checksum": re.compile(r"^\s*ADD\s+.*--checksum=", re.IGNORECASE | re.MULTILINE),
    "COPY --exclude": re.compile(r"^\s*COPY\s+.*--exclude=", re.IGNORECASE | re.MULTILINE),
}


def base_images(text: str) -> list[str]:
    """Return the images a Dockerfile starts from, without `scratch`, its own stages and names from variables."""
    stages: set[str] = set()
    found = []
    for _, image, stage in _starts(text):
        if image != "scratch" and image not in stages and "$" not in image:
            found.append(image)
        stages.add(stage)
    return found


def trusting(text: str) -> str:
    """Return a Dockerfile that trusts one more certificate in every stage, from its first step on."""
    lines = text.splitlines()
    for index, image, _ in reversed(list(_starts(text))):
        if image != "scratch":
            lines[index + 1 : index + 1] = _TRUST
    return "\n".join(lines) + "\n"


def buildkit_features(text: str) -> list[str]:
    """Return what a Dockerfile uses that only BuildKit builds, for an error's hint."""
    return [name for name, pattern in _BUILDKIT_ONLY.items() if pattern.search(text)]


def line_of_feature(text: str, feature: str) -> int | None:
    """Return the first line that uses a feature of `buildkit_features`, None when there is none."""
    match = _BUILDKIT_ONLY[feature].search(text)
    if match is None:
        return None
    blanks = len(match[0]) - len(match[0].lstrip())
    return text.count("\n", 0, match.start() + blanks) + 1


def line_of_step(text: str, step: str) -> int | None:
    """Return the number of the line a build step stands on, None when it cannot be told."""
    words = step.split()[:2]
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if parts and words and parts[0].upper() == words[0].upper() and parts[1:2] == words[1:2]:
            return number
    return None


def _starts(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the last line, the image and the stage name of every FROM, lines joined by backslash as one."""
    joined = ""
    for index, line in enumerate(text.splitlines()):
        if line.lstrip().startswith("#"):
            continue
        joined += line.rstrip().removesuffix("\\") + " "
        if line.rstrip().endswith("\\"):
            continue
        if match := _FROM.match(joined):
            yield index, match["image"], match["stage"] or ""
        joined = ""

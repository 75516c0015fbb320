"""Names and identifiers: readable, safe for files, images and queues, and never colliding."""

from __future__ import annotations

import hashlib
import re
import secrets
import unicodedata

_GPU_SUFFIX = ".gpu"  # a kind of sandbox has no dot in its name
_SLUG_LIMIT = 40
_SUFFIXED = re.compile(r"-[0-9a-f]{8}$")
_ADJECTIVES = [
    "amber",
    "bold",
    "brisk",
    "calm",
    "clear",
    "cool",
    "crisp",
    "dawn",
    "deep",
    "early",
    "fair",
    "fast",
    "fresh",
    "gentle",
    "glad",
    "gold",
    "grand",
    "green",
    "happy",
    "keen",
    "kind",
    "late",
    "light",
    "lively",
    "lucky",
    "mellow",
    "mild",
    "neat",
    "noble",
    "old",
    "open",
    "pale",
    "plain",
    "proud",
    "quick",
    "quiet",
    "rapid",
    "red",
    "ripe",
    "sharp",
    "shy",
    "silver",
    "small",
    "smart",
    "snowy",
    "soft",
    "solid",
    "still",
    "sunny",
    "swift",
    "tidy",
    "true",
    "vivid",
    "warm",
    "wild",
    "wise",
    "young",
]
_NOUNS = [
    "ant",
    "badger",
    "bear",
    "beaver",
    "bee",
    "birch",
    "bison",
    "cedar",
    "crane",
    "crow",
    "deer",
    "dove",
    "eagle",
    "elk",
    "elm",
    "falcon",
    "fern",
    "finch",
    "fir",
    "fox",
    "frog",
    "gull",
    "hare",
    "hawk",
    "heron",
    "ibis",
    "jay",
    "lark",
    "lemur",
    "lily",
    "lion",
    "lynx",
    "maple",
    "mole",
    "moss",
    "moth",
    "newt",
    "oak",
    "otter",
    "owl",
    "panda",
    "pike",
    "pine",
    "plover",
    "puma",
    "quail",
    "rabbit",
    "raven",
    "reed",
    "robin",
    "rook",
    "salmon",
    "seal",
    "shrew",
    "sparrow",
    "stork",
    "swan",
    "tern",
    "thrush",
    "tiger",
    "toad",
    "trout",
    "vole",
    "willow",
    "wolf",
    "wren",
]

JOB_NAME_PATTERN = r"^[a-z0-9][a-z0-9_-]{0,62}$"
"""What a job may be called: it names a folder, a key prefix and a label value."""


def is_job_name(name: str) -> bool:
    """Return whether a job may be called so."""
    return re.search(JOB_NAME_PATTERN, name) is not None and not name.endswith("\n")


def new_job_name() -> str:
    """Return a fresh readable job name such as ``calm-otter-7f3a``."""
    return f"{secrets.choice(_ADJECTIVES)}-{secrets.choice(_NOUNS)}-{secrets.token_hex(2)}"


def slug(name: str, *, limit: int = _SLUG_LIMIT) -> str:
    """Return a derived name that matches ``[a-z0-9][a-z0-9_-]*``.

    A name that has to be changed gets a suffix of eight hex digits of its own
    digest, and so does one that ends as if it had got it, so that two different
    names never share a slug.

    Args:
        name: Any text, e.g. the name of a task folder.
        limit: Longest slug, at least 16 and at most 63 characters.
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    cleaned = re.sub(r"[^a-z0-9_-]+", "-", plain.lower()).strip("-_")
    if cleaned and cleaned == name and len(cleaned) <= limit and not _SUFFIXED.search(cleaned):
        return cleaned
    suffix = short_digest(name)
    stem = cleaned[: limit - len(suffix) - 1].strip("-_") or "x"
    return f"{stem}-{suffix}"


def short_digest(*parts: str) -> str:
    """Return eight hex digits that stand for the parts, in order."""
    joined = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.sha256(joined).hexdigest()[:8]


def queue_of(kind: str, *, needs_gpus: bool = False) -> str:
    """Return the queue of trials: that of their kind of sandbox, or that of its workers with GPUs."""
    return f"{kind}{_GPU_SUFFIX}" if needs_gpus else kind


def kind_of_queue(queue: str) -> str:
    """Return the kind of sandbox of a queue's trials."""
    return queue.removesuffix(_GPU_SUFFIX)


def trial_id(job: str, task_slug: str, agent_slug: str, try_number: int) -> str:
    """Return the id of a trial, the same for ever; it is also its Celery task id."""
    return f"{job}.{task_slug}.{agent_slug}.{try_number}"


def attempt_folder(task_slug: str, trial: str, attempt: int, *, epoch: int = 0) -> str:
    """Return the folder of one attempt below its job's folder: ``<task>__<8 hex>``.

    Args:
        task_slug: Slug of the task.
        trial: Trial id.
        attempt: Number that is never given twice in an epoch of the job.
        epoch: How often the job was reopened.
    """
    number = str(attempt) if epoch == 0 else f"{epoch}/{attempt}"
    return f"{task_slug}__{short_digest(trial, number)}"

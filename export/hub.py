"""Checkpoints from the Hugging Face hub, for who asks for it; everything else reads local files alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ..runtime.errors import InputError

ROLES = ("target", "draft", "image-decoder", "text-encoder")
COMPANIONS = ("config.json", "class_names.json", "tokenizer.json")
FORM = "[ROLE=]REPO[@REVISION][:PATH]"
_REFERENCE = re.compile(r"(?:([^=]+)=)?([^=@:]+)(?:@([^=@:]+))?(?::(.+))?")


@dataclass(frozen=True)
class HubReference:
    """Where one checkpoint is. path: a file or folder in the repository; empty: its safetensors files."""

    role: str
    repo: str
    revision: str | None
    path: str

    @property
    def text(self) -> str:
        """As it is written on the command line, without the role."""
        return self.repo + (f"@{self.revision}" if self.revision else "") + (f":{self.path}" if self.path else "")

    def patterns(self) -> list[str]:
        """What is downloaded: the weights, and what builds read beside them."""
        if not self.path:
            return ["*.safetensors", "*.safetensors.index.json", *COMPANIONS]
        folder = self.path[: self.path.rfind("/") + 1]
        return [self.path, f"{self.path}/*", *(folder + name for name in COMPANIONS)]


def parse_reference(text: str) -> HubReference:
    """ "draft=owner/name@v1:folder/file.pt"; the role is target if there is none. Raises: InputError."""
    match = _REFERENCE.fullmatch(text)
    role = (match[1] or "target") if match else ""
    if match is None or role not in ROLES:
        raise InputError(f"--from-hub {text}: expected {FORM}, with a role of {', '.join(ROLES)} (default: target).")
    return HubReference(role, match[2], match[3], (match[4] or "").strip("/"))


def download(reference: HubReference) -> Path:
    """The checkpoint in the local cache of the hub, downloaded if it is not there yet.

    Raises: InputError when huggingface_hub is missing, the hub can't be reached, or has no such files.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            f"--from-hub {reference.text}: it needs huggingface_hub, which is not installed. Install it: "
            "pip install 'coolsd-trt[hub]', or download the files yourself and name their folder."
        ) from None
    try:
        snapshot = snapshot_download(reference.repo, revision=reference.revision, allow_patterns=reference.patterns())
    except (OSError, ValueError) as error:
        raise InputError(f"--from-hub {reference.text}: {_reason(error, reference)}") from None
    found = Path(snapshot) / reference.path
    if not (found.exists() if reference.path else any(found.glob("*.safetensors"))):
        what = f"no {reference.path}" if reference.path else "no .safetensors files at the top"
        raise InputError(
            f"--from-hub {reference.text}: {what} in {reference.repo}, or, offline, in its cache. Name a file or "
            f"folder of https://huggingface.co/{reference.repo}/tree/{reference.revision or 'main'}: {FORM}."
        )
    return found


def _reason(error: Exception, reference: HubReference) -> str:
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            f"access to {reference.repo} is restricted. Accept its terms on https://huggingface.co/{reference.repo}, "
            "and log in: hf auth login."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such repository, or a private one. Check the name {reference.repo!r}, or log in: hf auth login."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{reference.repo} has no revision {reference.revision!r}. Expected a branch, a tag or a commit."
    if isinstance(error, errors.HFValidationError):
        return f"{reference.repo!r} is no repository's name. Expected owner/name."
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, ConnectionError)):
        return (
            "the hub can't be reached, and its cache has no such files. Go online (HF_HUB_OFFLINE must be unset), name "
            f"a mirror in HF_ENDPOINT, or copy the files here and give their folder: --{reference.role} FOLDER."
        )
    first = str(error).strip().splitlines() or [type(error).__name__]
    return f"the download failed ({first[0]}). Try again: what is complete is kept."

"""Find a model's file in a Hugging Face repository, and download it once into Hugging Face's cache."""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.errors import StartupError
from server.llama.parts import listed, siblings

PREFERRED = "Q4_K_M"
_PROJECTOR = re.compile(r"(?:.*/)?[^/]*mmproj[^/]*\.gguf", re.IGNORECASE)
_GGUF = re.compile(r"(?:.*/)?(?![^/]*(?:mmproj|imatrix))[^/]*\.gguf", re.IGNORECASE)
KINDS = ("mtp", "eagle3", "dspark", "dflash")
"""Kinds of heads; if a repository has several, the first is used."""
# Names of files with a head or assistant beside a model, as llama.cpp tells them (common/download.cpp).
_HEAD = re.compile(rf"(?:.*/)?[^/]*({'|'.join(KINDS)})-[^/]*", re.IGNORECASE)
# The last part of a file's name, as llama.cpp reads a quantisation from it: its first number is the bits.
_LAST_PART = re.compile(r"[-.][a-z_]*(\d*)\w*(?:-\d{5}-of-\d{5})?\.gguf", re.IGNORECASE)
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
HUB_TIMEOUT_S = 20.0  # seconds until Hugging Face counts as out of reach: its slow answers take a few
_MAX_LISTED = 12  # names that an error lists at most


@dataclass(frozen=True, slots=True)
class Source:
    """A model on Hugging Face."""

    repository: str
    quant: str | None = None  # quantisation such as Q8_0, found in file names
    file: str | None = None  # the name of the file, instead of a quantisation


def source(repository: str, file: str | None = None, *, flag: str = "--hf-repo") -> Source:
    """Return the model that a flag names as USER/MODEL[:QUANT]. Raises StartupError, naming the flag."""
    name, _, quant = repository.partition(":")
    if not _REPOSITORY.fullmatch(name):
        raise StartupError(f"{flag} is USER/MODEL or USER/MODEL:QUANT, not {repository}")
    return Source(name, quant or None, file)


def choose(names: Sequence[str], wanted: Source) -> list[str]:
    """Return the wanted model's files, in order, given all names in its repository. Raises StartupError."""
    if wanted.file is not None:
        found = siblings(wanted.file)
        if missing := [name for name in found if name not in names]:
            raise StartupError(f"{wanted.repository} has no {missing[0]}: {_offer_text(names)}")
        return found
    models = _model_files(names)
    fitting = [name for name in models if _is_of(name, wanted.quant or PREFERRED)]
    if wanted.quant and not fitting:
        raise StartupError(f"{wanted.repository} has no file in {wanted.quant}: {_offer_text(names)}")
    if not models:
        raise StartupError(f"{wanted.repository} has no GGUF file: choose a repository that has one")
    return choose(names, Source(wanted.repository, file=(fitting or models)[0]))


def heads(names: Sequence[str], model: str) -> dict[str, str]:
    """Return the heads in a repository that are for its model, one per kind.

    A head is in the model's folder or in a parent folder. Among several, the nearest is used, then the one
    with the most similar quantisation.

    Args:
        names: Names of the repository's files.
        model: Name of the model's first file.
    """
    found: dict[str, str] = {}
    for name in _beside(names, model):
        kind = _HEAD.fullmatch(name)
        if kind and _GGUF.fullmatch(name):
            found.setdefault(kind[1].lower(), name)
    return found


def projector(names: Sequence[str], model: str) -> str | None:
    """Return the projector beside a model, chosen as llama-server does; None if there is none.

    Args:
        names: Names of the repository's files.
        model: Name of the model's first file.
    """
    return next((name for name in _beside(names, model) if _PROJECTOR.fullmatch(name)), None)


def _beside(names: Sequence[str], model: str) -> list[str]:
    """Return the other files in a model's folder and in the folders above it, nearer folders first.

    Within a folder, files whose bits per weight, by their names, are closest to the model's come first.
    """
    folders = model.split("/")[:-1]

    def rank(name: str) -> tuple[int, int, str]:
        return -name.count("/"), abs(_bits(name) - _bits(model)), name

    around = (name.split("/")[:-1] for name in names)
    near = [name for name, within in zip(names, around, strict=True) if folders[: len(within)] == within]
    return sorted((name for name in near if name != model), key=rank)


@dataclass(frozen=True, slots=True)
class FetchedModel:
    """A fetched model, and the files beside it, which are not fetched yet."""

    model: Path  # its first file
    repository: str
    heads: Mapping[str, list[str]]  # names of a head's files, by kind
    projector: str | None  # name of the projector's file
    offline: bool  # only Hugging Face's cache was reached

    def fetch_beside(self, names: Sequence[str]) -> Path:
        """Return the path of the first of these files, downloaded if necessary. Raises StartupError."""
        with _hub_for(self.repository) as hub:
            return _download(hub, self.repository, names, offline=self.offline)


def fetch(wanted: Source, *, offline: bool = False) -> Path:
    """Find the model as find() does, and return the path of its first file. Raises StartupError."""
    return find(wanted, offline=offline).model


def find(wanted: Source, *, offline: bool = False) -> FetchedModel:
    """Return the model, downloaded unless it is in Hugging Face's cache.

    Without a connection, or if `offline`, only the cache is used. The access token comes from HF_TOKEN or
    from Hugging Face's login. Raises StartupError.
    """
    if offline:
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when it is imported
    with _hub_for(wanted.repository) as hub:
        names, offline = _file_names(hub, wanted)
        chosen = choose(names, wanted)
        path = _download(hub, wanted.repository, chosen, offline=offline)
    beside = {kind: siblings(name) for kind, name in heads(names, chosen[0]).items()}
    return FetchedModel(path, wanted.repository, beside, projector(names, chosen[0]), offline)


def _download(hub: Any, repository: str, names: Sequence[str], *, offline: bool) -> Path:
    """Download these files unless they are in the cache, and return the path of the first."""
    paths = [hub.hf_hub_download(repository, name, local_files_only=offline) for name in names]
    return Path(paths[0])


@contextmanager
def _hub_for(repository: str) -> Generator[Any]:
    """Yield huggingface_hub, and turn its errors into StartupErrors about this repository."""
    import huggingface_hub as hub  # slow to import, and most models are files
    from huggingface_hub import errors

    try:
        yield hub
    except (errors.GatedRepoError, errors.RepositoryNotFoundError) as error:
        raise StartupError(
            f"{repository} is not on Hugging Face, or not for everybody: check its name, accept its "
            "terms there, and set HF_TOKEN to a token that may read it"
        ) from error
    except errors.HFValidationError as error:
        raise StartupError(f"--hf-repo: {_first_line(error)}") from error
    except StartupError:
        raise
    except Exception as error:  # of whatever library it asks with
        raise StartupError(
            f"{repository} cannot be downloaded ({_first_line(error)}): check the connection, or "
            "download the GGUF file elsewhere and give it with --model"
        ) from error


def _file_names(hub: Any, wanted: Source) -> tuple[list[str], bool]:
    """Return the names of the repository's files, and True if only the local cache was listed."""
    try:
        about = hub.HfApi().model_info(wanted.repository, timeout=HUB_TIMEOUT_S)
        return [file.rfilename for file in about.siblings or ()], False
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError) as error:
        if getattr(error, "response", None) is None or error.response.status_code < 500:
            raise
        why: Exception = error
    except Exception as error:  # of whatever library it asks with: no connection, or none wanted
        why = error
    try:
        folder = Path(hub.snapshot_download(wanted.repository, local_files_only=True))
    except Exception as error:
        raise why from error
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()], True


def _model_files(names: Sequence[str]) -> list[str]:
    """Return the sorted names of models; if there are none, the names of heads."""
    files = sorted(name for name in names if _GGUF.fullmatch(name))
    return [name for name in files if not _HEAD.fullmatch(name)] or files


def _bits(name: str) -> int:
    """Return the bits of a weight according to a file's name, 0 if the name has none."""
    found = _LAST_PART.search(name)
    return int(found[1] or 0) if found else 0


def _is_of(name: str, quant: str) -> bool:
    """Return True if the name of a file or of its folder contains this quantisation."""
    return re.search(rf"(?:^|[-._/]){re.escape(quant)}(?=[-./])", name, re.IGNORECASE) is not None


def _offer_text(names: Sequence[str]) -> str:
    return (
        f"it has {listed(models, _MAX_LISTED)}" if (models := _model_files(names)) else "it has no GGUF file"
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__

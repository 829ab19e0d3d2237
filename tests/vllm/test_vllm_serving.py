"""Exported agents behind vLLM's own server: they say there what transformers says that they say."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from tiny import STOP
from vllm_bench import AGENTS, ALPHA, RANK

from mappa_envs.errors import PromptTooLong
from mappa_train import cli
from mappa_train.checkpoint import RunFolder
from mappa_train.engine.vllm_setup import why_not
from mappa_train.model import load_pretrained
from mappa_train.policies import LoRAPolicies
from mappa_train.served import ServedPolicy
from mappa_train.settings import resolve
from mappa_train.team import save_weights
from mappa_train.tokens import ChatTokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.vllm,
    pytest.mark.skipif(why_not() is not None, reason=f"{why_not()}"),
]

CONTEXT, MAX_NEW = 8192, 12
ON_A_CPU = ("--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", str(32 << 20))
PROMPT = torch.tensor([2, 7, 11, 30, 9, 25, 4])
MESSAGES = ({"role": "system", "content": "w3 w8 w1"}, {"role": "user", "content": "w1 w2 w40 w7"})
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


@pytest.fixture(scope="module")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The run of a team whose adapters have moved far from the base, and from each other."""
    path = tmp_path_factory.mktemp("runs") / "run"
    adapter = {"lora_rank": RANK, "lora_alpha": ALPHA}
    config = resolve({"model": str(folder), "out": str(path), "max_new_tokens": MAX_NEW, **adapter})
    run = RunFolder.create(config, load_pretrained(config.model))
    policies = LoRAPolicies(folder, AGENTS, rank=RANK, alpha=ALPHA, seed=0)
    generator = torch.Generator().manual_seed(5)
    for agent in AGENTS:
        for parameter in policies.parameters(agent):
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
    save_weights(run, 1, policies, {})
    return run


def export(run: RunFolder, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, str]:
    """What the command says, by the word before each colon."""
    capsys.readouterr()
    assert cli.main(["export", str(run.path), "--format", "hf", *flags]) == 0
    said = capsys.readouterr().out.splitlines()
    return {name: rest for name, _, rest in (line.partition(": ") for line in said)}


@contextlib.contextmanager
def serving(command: str, log: Path) -> Iterator[str]:
    """The address of a server that is up. Afterwards it has ended, with all that it began."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    words = [sys.executable if word == "python" else word for word in shlex.split(command)]
    words += ["--host", "127.0.0.1", "--port", port, "--max-model-len", str(CONTEXT), *ON_A_CPU]
    # What the engines of this process have been told is not for a server.
    env = {name: value for name, value in os.environ.items() if not name.startswith("VLLM_")}
    with log.open("wb") as file:
        server = subprocess.Popen(
            words,
            env=env,
            stdout=file,
            stderr=subprocess.STDOUT,
            # Also if this process is killed. A server that is told to end takes its engine with it.
            preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0),
        )
    try:
        wait_for(server, f"http://127.0.0.1:{port}/health", log)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        end(server)


def wait_for(server: subprocess.Popen[bytes], address: str, log: Path) -> None:
    limit = time.monotonic() + 300
    while time.monotonic() < limit and server.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(address, trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"no server at {address}; it wrote: {log.read_text(errors='replace')[-4000:]}")


def end(server: subprocess.Popen[bytes]) -> None:
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(server.pid).children(recursive=True)
    server.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        server.wait(30)
    server.kill()
    server.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    for process in alive:
        process.kill()


def loaded(folder: str) -> Any:
    """A whole model, or an adapter on its base, as transformers and peft load it."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@torch.no_grad()
def assert_it_says_the_same(url: str, name: str, folder: str) -> Sequence[int]:
    """The server's greedy tokens are those of the model in `folder`, with its logprobs; returns them."""
    asked = {"model": name, "prompt": PROMPT.tolist(), "max_tokens": MAX_NEW, "temperature": 0}
    asked |= {"logprobs": 1, "return_tokens_as_token_ids": True, "ignore_eos": True}
    answer = httpx.post(f"{url}/completions", json=asked, timeout=120, trust_env=False)
    said = answer.raise_for_status().json()["choices"][0]["logprobs"]
    ids = torch.tensor([int(token.removeprefix("token_id:")) for token in said["tokens"]])
    assert len(ids) == MAX_NEW
    logits = loaded(folder)(input_ids=torch.cat([PROMPT, ids])[None]).logits[0, len(PROMPT) - 1 : -1]
    likeliest = logits.log_softmax(-1).max(-1)
    assert ids.tolist() == likeliest.indices.tolist()
    torch.testing.assert_close(torch.tensor(said["token_logprobs"]), likeliest.values, atol=1e-4, rtol=0)
    return tuple(ids.tolist())


def assert_it_chats_the_same(
    url: str, names: Mapping[str, str], folders: Mapping[str, str], tokenizer: ChatTokenizer
) -> ServedPolicy:
    """What `eval` asks of the server for each agent is what its model answers to the messages."""
    policy = ServedPolicy(url, names, max_new_tokens=MAX_NEW, temperature=0.0)

    async def everybody() -> list[str]:
        return await asyncio.gather(*(policy(agent, MESSAGES) for agent in names))

    for agent, text in zip(names, asyncio.run(everybody()), strict=True):
        ids = tokenizer.encode(MESSAGES)
        found = loaded(folders[agent]).generate(
            ids[None], do_sample=False, max_new_tokens=MAX_NEW, eos_token_id=STOP
        )
        assert text.split() == tokenizer.decode(found[0, len(ids) :]).split()
    return policy


def test_adapters_are_served_as_the_export_says_and_measured_there(
    run: RunFolder, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = export(run, capsys)
    with serving(said["serve"], tmp_path / "server.log") as url:
        answers = {assert_it_says_the_same(url, agent, said[agent]) for agent in AGENTS}
        assert len(answers) == len(AGENTS)  # else all might have the weights of one
        policy = assert_it_chats_the_same(
            url, {agent: agent for agent in AGENTS}, said, ChatTokenizer(folder)
        )
        too_long = [{"role": "user", "content": "w1 " * CONTEXT}]
        with pytest.raises(PromptTooLong, match="modeler_0"):
            asyncio.run(policy("modeler_0", too_long))

        figures = tmp_path / "figures.json"
        measure = shlex.split(said["measure"].replace("http://localhost:8000/v1", url))
        measure = [sys.executable, *measure[1:], "--split", "val", "--episodes", "2", "--json", str(figures)]
        done = subprocess.run(measure, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert json.loads(figures.read_text())["overall"]["num_episodes"] == 2


def test_a_merged_agent_is_served_as_the_export_says(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = export(run, capsys, "--merged")
    first = min(AGENTS)  # the one in the line
    with serving(said["serve"], tmp_path / "server.log") as url:
        assert_it_says_the_same(url, said[first], said[first])
        tokenizer = ChatTokenizer(Path(said[first]))
        assert_it_chats_the_same(url, {first: said[first]}, said, tokenizer)

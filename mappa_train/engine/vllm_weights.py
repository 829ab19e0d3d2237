"""How the learner's weights come into vLLM, and the proof that they did."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from mappa_envs.errors import MappaError

if TYPE_CHECKING:  # vLLM's own processes load this, too, and need no more of it than what packs a head
    from mappa_train.policies import Policies

TOLERANCE = {torch.float32: 2e-4, torch.bfloat16: 0.2}
"""Largest mean difference of logprobs, in nats a token, by the engine's type; see docs/engines.md."""

Ask = Callable[[Any, Any, Any, Any], Any]
"""Of an engine, a prompt, its `SamplingParams` and its adapter: the finished answer."""

log = logging.getLogger(__name__)


class SyncError(MappaError, RuntimeError):
    """An engine does not sample from the weights that its policy has."""


class Weights(Protocol):
    """Which engine samples from a policy, and how new weights get into it."""

    engines: dict[str, Any]

    def load(self, policy: str, version: int, model: Any) -> None:
        """Put the policy's current weights, of which `model` is made, into its engine.

        The engine has nothing under way.
        """
        ...

    def adapter(self, policy: str) -> Any:
        """The `LoRARequest` that prompts for the policy are given with, or None."""
        ...

    def close(self) -> None:
        """Remove what was written to the disk."""
        ...


class MergedWeights:
    """An engine a policy, and its whole weights (an adapter is merged) copied from the live model."""

    def __init__(self, names: Sequence[str], start: Callable[[], Any]) -> None:
        self.engines = {policy: start() for policy in names}

    def load(self, policy: str, version: int, model: Any) -> None:
        copy_weights(self.engines[policy], model)

    def adapter(self, policy: str) -> Any:
        return None

    def close(self) -> None:
        """Nothing is on the disk."""


def copy_weights(engine: Any, model: Any) -> None:
    """Copy a live model's weights into an engine of this process.

    vLLM packs weights when it loads them (on a CPU a layer's own tensor is empty afterwards), so they go
    through its layer-wise reload, which makes room for them as they are in a checkpoint and packs them anew.
    """
    engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(named_weights(model).items())})
    engine.apply_model(pack_tied_head)


def named_weights(model: Any) -> dict[str, Tensor]:
    """A live model's weights as in a checkpoint: a head that is tied to the embeddings is left out."""
    tied = "lm_head.weight" if model.config.tie_word_embeddings else ""
    return {name: value for name, value in model.state_dict().items() if name != tied}


def pack_tied_head(model: nn.Module) -> None:
    """Pack a head that is tied to the embeddings: on a CPU it is a copy, which the reload leaves alone."""
    module: Any
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            module.quant_method.process_weights_after_loading(module)


class AdapterWeights:
    """One engine for all policies, which share the base; an adapter each, handed over as a file of PEFT.

    An adapter gets a new name and number with every version: vLLM's cache of prompts knows adapters by name,
    and one that is added again under its own would be answered from the cache of the old.
    """

    def __init__(self, policies: Policies, start: Callable[[], Any], *, alpha: int) -> None:
        self._policies = policies
        self._alpha = alpha
        self._requests: dict[str, Any] = {}
        self._count = 0
        self.engines = dict.fromkeys(policies.names, start())
        # Last: what fails to start is never closed.
        self._folder = Path(tempfile.mkdtemp(prefix="mappa-adapters-"))

    def load(self, policy: str, version: int, model: Any) -> None:
        from vllm.lora.request import LoRARequest

        self._count += 1
        name = f"{policy}@{version}"
        folder = self._folder / f"{self._count}"
        write_adapter(folder, self._policies.state(policy), self._alpha)
        request = LoRARequest(name, self._count, str(folder))
        # Now, not with the first prompt: there, a faulty adapter ends the engine.
        self.engines[policy].add_lora(request)
        old = self._requests.get(policy)
        self._requests[policy] = request
        if old is not None:
            self.engines[policy].remove_lora(old.lora_int_id)
            shutil.rmtree(old.lora_path)

    def adapter(self, policy: str) -> Any:
        return self._requests[policy]

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def write_adapter(folder: Path, state: dict[str, Tensor], alpha: int) -> None:
    """A LoRA adapter as PEFT saves it; `state` is what `LoRAPolicies.state` gives."""
    folder.mkdir()
    save_file(state, folder / "adapter_model.safetensors")
    rank = next(value.shape[0] for name, value in state.items() if name.endswith("lora_A.weight"))
    modules = sorted({name.split(".")[-3] for name in state})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": modules, "bias": "none"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


class Probe:
    """A prompt whose logprobs must be the same in an engine and in the model that its weights came from.

    `ids`: int64 [p]. Token ids and greedy choices would not do: they often stay the same when weights change.
    """

    def __init__(self, ids: Tensor) -> None:
        self._ids = ids

    def check(self, policy: str, engine: Any, model: Any, ask: Ask, adapter: Any) -> float:
        """The mean difference, in nats a token. Raises `SyncError` if it exceeds the tolerance."""
        dtype = engine.vllm_config.model_config.dtype
        answer = ask(engine, *self._question(), adapter)
        difference = (self._of_answer(answer) - self._of_model(model)).abs().mean().item()
        if not difference <= TOLERANCE[dtype]:  # a NaN is no agreement
            raise SyncError(
                f"{policy}: after the sync, logprobs of the probe differ from those of its policy by "
                f"{difference:.2g} nats a token; {TOLERANCE[dtype]:g} is allowed in {dtype}. vLLM has other "
                "weights than the policy"
            )
        return difference

    def _question(self) -> tuple[Any, Any]:
        from vllm import SamplingParams, TokensPrompt

        # Seeded: without, it would draw from the process's generator, which is the learner's.
        params = SamplingParams(max_tokens=1, temperature=1.0, seed=0, prompt_logprobs=0, detokenize=False)
        return TokensPrompt(prompt_token_ids=self._ids.tolist()), params

    def _of_answer(self, answer: Any) -> Tensor:
        ids = self._ids.tolist()
        entries = zip(answer.prompt_logprobs[1:], ids[1:], strict=True)
        return torch.tensor([entry[token].logprob for entry, token in entries])

    @torch.inference_mode()
    def _of_model(self, model: Any) -> Tensor:
        ids = self._ids.to(model.lm_head.weight.device)
        hidden = model.model(input_ids=ids[None], use_cache=False).last_hidden_state[0, :-1]
        logprobs: Tensor = model.lm_head(hidden).float().log_softmax(dim=-1)
        return logprobs.gather(1, ids[1:, None])[:, 0].cpu()


def ask(engine: Any, prompt: Any, params: Any, adapter: Any) -> Any:
    """The answer of an engine of this process that has nothing under way."""
    engine.add_request("probe", prompt, params, lora_request=adapter)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                return output
    raise RuntimeError("vLLM did not answer the probe")


def bring_in(weights: Weights, policies: Policies, probe: Probe, version: int, ask: Ask) -> None:
    """Load every policy's weights, forget what was cached, and verify, one after the other.

    Raises `SyncError` if an engine does not say of the probe what its policy says. The sampler is released:
    until the next update, after which it would be another, nothing here needs it.
    """
    for policy, engine in weights.engines.items():
        model = policies.sampler(policy)  # once: an adapter is merged each time
        weights.load(policy, version, model)
        if not engine.reset_prefix_cache():
            raise RuntimeError(f"{policy}: vLLM did not forget the prompts of the old weights")
        difference = probe.check(policy, engine, model, ask, weights.adapter(policy))
        log.info("version %d of %s is in; its probe differs by %.2g nats", version, policy, difference)
    policies.release_sampler()

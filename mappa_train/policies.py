"""Each agent's own trainable weights, and the frozen reference they are kept close to.

`LoRAPolicies`: one frozen base in memory, one adapter an agent; the reference is the base, or a frozen
copy of the adapter that the agent began with. `FullPolicies`: own weights for each agent and a frozen copy.
The model is used through `hidden` and `head` only, so that logits are made for response tokens alone.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from mappa_envs.errors import ConfigError, boundary
from mappa_train.engine.cache import use_grouped_attention
from mappa_train.packing import Pack

_FROZEN = "start_of_"
"""Begins the name of the adapter that an agent began with."""


def pick_device() -> torch.device:
    """The first GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A causal language model, in evaluation mode (dropout off, which ratios of 1 need)."""
    from transformers import AutoModelForCausalLM

    with boundary(ConfigError, f"{folder}: not a causal language model", OSError, ValueError):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    placed: Any = model
    return placed.to(device).eval()


def hidden_states(model: Any, pack: Pack) -> Tensor:
    """What the body of the model says at the predicting places of a pack: [t, width].

    bf16 autocast over fp32 trainable weights. No cache and a mask of our own: the default cache or an
    all-ones mask would silently let one sample of a pack see another.
    """
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    device = body.lm_head.weight.device
    # Additive and in the type of the keys: a bool mask would be turned into one again in every layer.
    mask = torch.zeros((), dtype=torch.bfloat16).where(pack.mask(), -torch.inf)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        out = body.model(
            input_ids=pack.ids[None].to(device),
            position_ids=pack.positions[None].to(device),
            attention_mask=mask.to(device),
            use_cache=False,
        )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden[pack.predictors.to(device)]


class Policies(Protocol):
    """Who owns which weights."""

    agents: tuple[str, ...]

    def activate(self, agent: str) -> Any:
        """The agent's model, its weights alone trainable. Not between a forward and its backward."""
        ...

    def reference(self, agent: str) -> contextlib.AbstractContextManager[Any]:
        """The frozen model that the agent's π_ref is, while the context lasts."""
        ...

    def freeze_reference(self) -> None:
        """From now on π_ref is what the policies are at this moment. Once at most."""
        ...

    def parameters(self, agent: str) -> list[nn.Parameter]:
        """The agent's trainable weights (fp32)."""
        ...

    def sampler(self, agent: str) -> Any:
        """A plain model with the agent's current weights, to generate with (fp32 on a CPU)."""
        ...

    def state(self, agent: str) -> dict[str, Tensor]:
        """The agent's weights, on the CPU."""
        ...

    def load_state(self, agent: str, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        ...


class LoRAPolicies:
    """One adapter an agent on a shared, frozen base.

    The base of the learner is bf16: it is never updated, so it needs no fp32 master; adapters are fp32.
    The sampler is an fp32 copy into which the adapter of whoever samples is merged: on a CPU that is
    several times faster than running adapter layers token by token.
    """

    def __init__(self, folder: Path, agents: Sequence[str], rank: int, alpha: int, seed: int) -> None:
        from peft import LoraConfig, get_peft_model

        self.agents = tuple(agents)
        device = pick_device()
        torch.manual_seed(seed)
        base = load_model(folder, torch.bfloat16, device)
        self._adapter = partial(
            LoraConfig,
            r=rank,
            lora_alpha=alpha,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        self._model: Any = get_peft_model(base, self._adapter(), adapter_name=self.agents[0])
        for agent in self.agents[1:]:
            self._model.add_adapter(agent, self._adapter())
        self._model.eval()
        self._save_casts()
        # Built once from explicit names: set_adapter flips requires_grad, so no filter on that is safe.
        self._parameters = {
            agent: [p for name, p in self._model.named_parameters() if f".{agent}." in name]
            for agent in self.agents
        }
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._sampler: Any = load_model(folder, dtype, device).requires_grad_(False)
        use_grouped_attention(self._sampler)
        self._merge = self._find_merges()
        self._frozen = False

    def _save_casts(self) -> None:
        for module in self._model.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                # Under autocast the cast of every input to fp32 and back would only cost time.
                module.cast_input_dtype_enabled = False

    def _find_merges(self) -> list[tuple[nn.Parameter, Tensor, Any]]:
        modules = dict(self._sampler.named_modules())
        merges = []
        for name, module in self._model.get_base_model().named_modules():
            if hasattr(module, "lora_A"):
                weight = modules[name].weight
                merges.append((weight, weight.detach().clone(), module))
        return merges

    def activate(self, agent: str) -> Any:
        self._model.set_adapter(agent)
        return self._model

    @contextlib.contextmanager
    def reference(self, agent: str) -> Iterator[Any]:
        if not self._frozen:
            with self._model.disable_adapter():
                yield self._model
            return
        self._model.set_adapter(_FROZEN + agent)
        try:
            yield self._model
        finally:
            self._model.set_adapter(agent)

    def freeze_reference(self) -> None:
        from peft import set_peft_model_state_dict

        for agent in self.agents:
            self._model.add_adapter(_FROZEN + agent, self._adapter())
            set_peft_model_state_dict(self._model, self.state(agent), adapter_name=_FROZEN + agent)
        self._save_casts()
        self._frozen = True

    def parameters(self, agent: str) -> list[nn.Parameter]:
        return self._parameters[agent]

    @torch.no_grad()
    def sampler(self, agent: str) -> Any:
        for weight, original, module in self._merge:
            a, b = module.lora_A[agent].weight, module.lora_B[agent].weight
            delta = (b @ a) * module.scaling[agent]
            weight.copy_(original + delta.to(original.dtype))
        return self._sampler

    def state(self, agent: str) -> dict[str, Tensor]:
        from peft import get_peft_model_state_dict

        state = get_peft_model_state_dict(self._model, adapter_name=agent)
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}

    def load_state(self, agent: str, state: dict[str, Tensor]) -> None:
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(self._model, state, adapter_name=agent)


class FullPolicies:
    """A whole fp32 model for each agent, and frozen copies as reference: one, if all begin alike."""

    def __init__(self, folder: Path, agents: Sequence[str]) -> None:
        self.agents = tuple(agents)
        device = pick_device()
        self._models = {agent: load_model(folder, torch.float32, device) for agent in self.agents}
        # fp32 like the policies: only then is the KL exactly 0 before the first update.
        reference = load_model(folder, torch.float32, device).requires_grad_(False)
        self._reference = dict.fromkeys(self.agents, reference)

    def activate(self, agent: str) -> Any:
        return self._models[agent]

    @contextlib.contextmanager
    def reference(self, agent: str) -> Iterator[Any]:
        yield self._reference[agent]

    def freeze_reference(self) -> None:
        self._reference = {
            agent: copy.deepcopy(model).requires_grad_(False) for agent, model in self._models.items()
        }

    def parameters(self, agent: str) -> list[nn.Parameter]:
        return list(self._models[agent].parameters())

    def sampler(self, agent: str) -> Any:
        return self._models[agent]

    def state(self, agent: str) -> dict[str, Tensor]:
        tied = "lm_head.weight" if self._models[agent].config.tie_word_embeddings else ""
        state = self._models[agent].state_dict()
        return {name: value.detach().cpu().contiguous() for name, value in state.items() if name != tied}

    def load_state(self, agent: str, state: dict[str, Tensor]) -> None:
        missing, unexpected = self._models[agent].load_state_dict(state, strict=False)
        if unexpected or set(missing) - {"lm_head.weight"}:
            raise ConfigError(
                f"checkpoint of {agent} does not fit: missing {missing}, unexpected {unexpected}"
            )
        self._models[agent].tie_weights()

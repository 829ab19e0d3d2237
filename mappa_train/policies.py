"""Each agent's own weights, or those of all, and the frozen reference that they are kept close to.

`LoRAPolicies`: one frozen base in memory, one adapter a policy; the reference is the base, or a frozen
copy of the adapter that the policy began with. `FullPolicies`: whole weights for each and a frozen copy.
The model is used through `hidden` and `head` only, so that logits are made for response tokens alone.
`sharded` ones will be distributed over ranks: until then they are in the machine's memory, not on the GPU.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mappa_envs.errors import ConfigError, boundary
from mappa_train.attention import layout_of, use_packed_attention
from mappa_train.engine.cache import use_grouped_attention
from mappa_train.packing import Pack
from mappa_train.router import PolicyRouter
from mappa_train.sharding import check_fit, to_save, twin, whole

if TYPE_CHECKING:
    from mappa_train.parallel import Distributor

_FROZEN = "start_of_"
"""Begins the name of the adapter that a policy began with."""


def pick_device() -> torch.device:
    """A GPU where there is one: the first, or that of the LOCAL_RANK of a process among several."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """A causal language model, in evaluation mode (dropout off, which ratios of 1 need)."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    chatter: Any = logging  # without types
    chatter.disable_progress_bar()  # the screen belongs to the progress of the run
    with boundary(ConfigError, f"{folder}: not a causal language model", OSError, ValueError):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
    placed: Any = model
    return placed.to(device).eval()


def load_to_learn(folder: Path, dtype: torch.dtype, device: torch.device, *, checkpointing: bool) -> Any:
    """A model that packs can be given to."""
    model = load_model(folder, dtype, device)
    use_packed_attention(model)
    if checkpointing:
        checkpoint_layers(model)
    return model


def checkpoint_layers(model: Any) -> None:
    """Let the backward pass compute each layer again from its input, instead of keeping what it needs.

    The library's own switch does nothing in evaluation mode, which a ratio of 1 needs.
    """
    for layer in model.model.layers:
        layer.forward = partial(_checkpointed, layer.forward)


def _checkpointed(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def hidden_states(model: Any, pack: Pack) -> Tensor:
    """What the body of the model says at the predicting places of a pack: [t, width].

    bf16 autocast over fp32 trainable weights. No cache, and attention by the pack's own layout: the default
    cache or an all-ones mask would silently let one sample of a pack see another.
    """
    body = model.get_base_model() if hasattr(model, "get_base_model") else model
    weight = body.lm_head.weight
    device = weight.device
    with torch.autocast(device.type, dtype=torch.bfloat16):
        dtype = torch.bfloat16 if torch.is_autocast_enabled(device.type) else weight.dtype
        out = body.model(
            input_ids=pack.ids[None].to(device),
            position_ids=pack.positions[None].to(device),
            # With four dimensions it is left alone, and no square mask is made.
            attention_mask=torch.zeros(1, 1, 1, 1, dtype=dtype, device=device),
            use_cache=False,
            layout=layout_of(pack, dtype, device),
        )
    hidden: Tensor = out.last_hidden_state[0]
    return hidden[pack.predictors.to(device)]


class Policies(Protocol):
    """The weights of a team; see `PolicyRouter` for who acts with which, and which learn."""

    agents: tuple[str, ...]
    policy_of: Mapping[str, str]
    names: tuple[str, ...]
    trained: tuple[str, ...]

    def actors(self, policy: str) -> tuple[str, ...]:
        """The agents that act with a policy."""
        ...

    def activate(self, policy: str) -> Any:
        """The model of a trained policy, its weights alone trainable. Not between a forward and its backward.

        After `distribute`, a module for `token_logprobs` only.
        """
        ...

    def reference(self, policy: str) -> contextlib.AbstractContextManager[Any]:
        """The frozen model that π_ref of a trained policy is, while the context lasts."""
        ...

    def freeze_reference(self) -> None:
        """From now on π_ref is what the trained policies are now. Once at most, before `distribute`."""
        ...

    def distribute(self, distributor: Distributor) -> None:
        """Train together with other ranks from now on. Once at most, and then no more `load_state`."""
        ...

    def refresh_sampler(self) -> None:
        """Tell the sampler of an update. Where weights are sharded, all ranks together; else no effort.

        Nothing at all where `distribute` was told that nothing samples.
        """
        ...

    def parameters(self, policy: str) -> list[nn.Parameter]:
        """The weights of a trained policy (fp32)."""
        ...

    def sampler(self, policy: str) -> Any:
        """A plain model with a policy's current weights, to generate with (fp32 on a CPU)."""
        ...

    def release_sampler(self) -> None:
        """Free what only a `sampler` needs, until the next one. Nothing samples meanwhile."""
        ...

    def state(self, policy: str) -> dict[str, Tensor]:
        """A policy's weights, on the CPU. Where they are sharded, all ranks ask, and the first gets them."""
        ...

    def load_state(self, policy: str, state: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        ...


class LoRAPolicies(PolicyRouter):
    """One adapter a policy on one frozen base.

    The base of the learner is bf16: it is never updated, so it needs no fp32 master; adapters are fp32.
    The sampler is an fp32 copy into which the adapter of whoever samples is merged: on a CPU that is
    several times faster than running adapter layers token by token.
    """

    def __init__(
        self,
        folder: Path,
        agents: Sequence[str],
        rank: int,
        alpha: int,
        seed: int,
        *,
        checkpointing: bool = False,
        frozen: Collection[str] = (),
        shared: bool = False,
        sharded: bool = False,
    ) -> None:
        from peft import LoraConfig

        super().__init__(agents, frozen, shared=shared)
        torch.manual_seed(seed)
        self._adapter = partial(
            LoraConfig,
            r=rank,
            lora_alpha=alpha,
            lora_dropout=0.0,
            target_modules="all-linear",
            task_type="CAUSAL_LM",
        )
        device = torch.device("cpu") if sharded else pick_device()
        self._model = self._load_model(folder, device, checkpointing=checkpointing)
        self._save_casts()
        self._parameters = self._find_parameters()
        named = self._model.get_base_model().named_modules()
        self._adapted = [(name, module) for name, module in named if hasattr(module, "lora_A")]
        self._folder = folder
        self._sampler: Any = None  # loaded when something samples with it
        self._originals: list[tuple[nn.Parameter, Tensor]] = []
        self._frozen = False
        self._distributed: dict[str, nn.Module] = {}
        self._gathers = False
        self._gathered: dict[str, list[tuple[Tensor, Tensor]]] = {}

    def _load_model(self, folder: Path, device: torch.device, *, checkpointing: bool) -> Any:
        """The base with an adapter for each policy."""
        from peft import get_peft_model

        base = load_to_learn(folder, torch.bfloat16, device, checkpointing=checkpointing)
        first, *others = self.names
        model = get_peft_model(base, self._adapter(), adapter_name=first)
        for policy in others:
            model.add_adapter(policy, self._adapter())
        return model.eval()

    def _save_casts(self) -> None:
        for module in self._model.modules():
            if hasattr(module, "cast_input_dtype_enabled"):
                # Under autocast the cast of every input to fp32 and back would only cost time.
                module.cast_input_dtype_enabled = False

    def _find_parameters(self) -> dict[str, list[nn.Parameter]]:
        # From explicit names: set_adapter flips requires_grad, so no filter on that is safe.
        named = list(self._model.named_parameters())
        return {policy: [p for name, p in named if f".{policy}." in name] for policy in self.names}

    def _load_sampler(self) -> None:
        device = self._model.device
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self._sampler = load_model(self._folder, dtype, device).requires_grad_(False)
        use_grouped_attention(self._sampler)
        modules = dict(self._sampler.named_modules())
        weights = [modules[name].weight for name, _ in self._adapted]
        self._originals = [(weight, weight.detach()) for weight in weights]

    def activate(self, policy: str) -> Any:
        self._model.set_adapter(policy)
        return self._distributed.get(policy, self._model)

    @contextlib.contextmanager
    def reference(self, policy: str) -> Iterator[Any]:
        model = self._distributed.get(policy, self._model)
        if not self._frozen:
            with self._model.disable_adapter():
                yield model
            return
        self._model.set_adapter(_FROZEN + policy)
        try:
            yield model
        finally:
            self._model.set_adapter(policy)

    def freeze_reference(self) -> None:
        from peft import set_peft_model_state_dict

        for policy in self.trained:
            self._model.add_adapter(_FROZEN + policy, self._adapter())
            set_peft_model_state_dict(self._model, self.state(policy), adapter_name=_FROZEN + policy)
        self._save_casts()
        self._frozen = True

    def distribute(self, distributor: Distributor) -> None:
        for policy in self.trained:
            self._model.set_adapter(policy)
            self._distributed[policy] = distributor(self._model)
        self._parameters = self._find_parameters()
        self._gathers = distributor.shards and distributor.samples
        self.refresh_sampler()

    def refresh_sampler(self) -> None:
        if self._gathers:
            self._gathered = {
                policy: [(whole(a), whole(b)) for a, b in self._factors(policy)] for policy in self.names
            }

    def _factors(self, policy: str) -> list[tuple[Tensor, Tensor]]:
        return [(m.lora_A[policy].weight, m.lora_B[policy].weight) for _, m in self._adapted]

    def parameters(self, policy: str) -> list[nn.Parameter]:
        return self._parameters[policy]

    @torch.no_grad()
    def sampler(self, policy: str) -> Any:
        if self._sampler is None:
            self._load_sampler()
        factors = self._gathered.get(policy) or self._factors(policy)
        places = zip(self._originals, self._adapted, factors, strict=True)
        for (weight, original), (_, module), (a, b) in places:
            delta = (b @ a) * module.scaling[policy]
            weight.data = original + delta.to(original.dtype)
        return self._sampler

    def release_sampler(self) -> None:
        # All of it: the update needs the room more than the next rollout the second that loading takes.
        self._sampler, self._originals = None, []

    def state(self, policy: str) -> dict[str, Tensor]:
        from peft import get_peft_model_state_dict

        state = get_peft_model_state_dict(self._model, adapter_name=policy)
        return {name: to_save(value) for name, value in state.items()}

    def load_state(self, policy: str, state: dict[str, Tensor]) -> None:
        from peft import get_peft_model_state_dict, set_peft_model_state_dict

        # Some of what does not fit, peft would leave out without a word.
        check_fit(policy, state, get_peft_model_state_dict(self._model, adapter_name=policy))
        set_peft_model_state_dict(self._model, state, adapter_name=policy)


class FullPolicies(PolicyRouter):
    """A whole fp32 model for each policy, and frozen copies as reference: one, if all begin alike."""

    def __init__(
        self,
        folder: Path,
        agents: Sequence[str],
        *,
        checkpointing: bool = False,
        frozen: Collection[str] = (),
        shared: bool = False,
        sharded: bool = False,
    ) -> None:
        super().__init__(agents, frozen, shared=shared)
        self._load = partial(load_to_learn, folder, torch.float32, checkpointing=checkpointing)
        # Those that will be sharded use the same memory for as long as they are alike.
        self._sharded, self._copy = sharded, twin if sharded else copy.deepcopy
        # fp32 like the policies: only then is the KL exactly 0 before the first update.
        reference = self._load(torch.device("cpu") if sharded else pick_device())
        self._models = {policy: self._copy(reference) for policy in self.names}
        self._reference = dict.fromkeys(self.trained, reference.requires_grad_(False))
        self._distributed: dict[str, nn.Module] = {}
        self._samplers: dict[str, Any] = {}

    def activate(self, policy: str) -> Any:
        return self._distributed.get(policy, self._models[policy])

    @contextlib.contextmanager
    def reference(self, policy: str) -> Iterator[Any]:
        yield self._reference[policy]

    def freeze_reference(self) -> None:
        self._reference = {
            policy: self._copy(self._models[policy]).requires_grad_(False) for policy in self.trained
        }

    def distribute(self, distributor: Distributor) -> None:
        if distributor.shards:
            self._reference = {policy: distributor(model) for policy, model in self._reference.items()}
        # DDP reserves room for gradients, which frozen weights do not have.
        wrapped = self.names if distributor.shards else self.trained
        self._distributed = {policy: distributor(self._models[policy]) for policy in wrapped}
        if distributor.shards and distributor.samples:  # last: a GPU never has whole copies of anything else
            sampler = self._load(pick_device()).requires_grad_(False)
            others = {policy: copy.deepcopy(sampler) for policy in self.names[1:]}
            self._samplers = {self.names[0]: sampler} | others
            self.refresh_sampler()

    @torch.no_grad()
    def refresh_sampler(self) -> None:
        for policy, sampler in self._samplers.items():
            state = self._models[policy].state_dict()
            for name, value in sampler.state_dict().items():
                value.copy_(whole(state[name]))

    def parameters(self, policy: str) -> list[nn.Parameter]:
        return list(self._models[policy].parameters())

    def sampler(self, policy: str) -> Any:
        return self._samplers.get(policy, self._models[policy])

    def release_sampler(self) -> None:
        """Nothing: the sampler is the model itself."""

    def state(self, policy: str) -> dict[str, Tensor]:
        return {name: to_save(value) for name, value in self._own(policy).items()}

    def _own(self, policy: str) -> dict[str, Tensor]:
        """Its weights by name, without a head that is the embedding once more."""
        tied = "lm_head.weight" if self._models[policy].config.tie_word_embeddings else ""
        return {name: value for name, value in self._models[policy].state_dict().items() if name != tied}

    def load_state(self, policy: str, state: dict[str, Tensor]) -> None:
        check_fit(policy, state, self._own(policy))
        # Without a tied head. What others still share must not be written to: what is read takes its place.
        self._models[policy].load_state_dict(state, strict=False, assign=self._sharded)
        self._models[policy].tie_weights()

"""vLLM: prompts are sampled as they come, in batches that change with every token.

The engines live in this process, so weights go from the learner's model straight into them, and a killed run
leaves nothing behind. The thread that learns makes and steps all of them: several threads crash vLLM, and are
slower (`beside.py`). On a CPU, and for whole weights, each policy has an engine; adapters on a GPU share one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mappa_envs.errors import UnavailableError
from mappa_train.engine.vllm_sampling import Sampling, generation_of, prompt_of
from mappa_train.engine.vllm_setup import prepare, start_engine, stderr_in_log
from mappa_train.engine.vllm_weights import AdapterWeights, MergedWeights, Probe, Weights, ask, bring_in
from mappa_train.policies import Policies
from mappa_train.types import Generation, GenerationRequest

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Pending:
    """A request under way; `latest` is what was sampled so far, kept where there is a deadline."""

    policy: str
    version: int
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Generation]
    deadline: float | None
    latest: Any = None

    def settle(self, act: Callable[..., object], *arguments: Any) -> None:
        """Call a method of the future in its own loop, if anybody still waits there."""

        def now() -> None:
            if not self.future.done():
                act(*arguments)

        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            self.loop.call_soon_threadsafe(now)


class VllmEngine:
    """Samples every agent's actions with vLLM; see `InlineEngine`.

    `probe_ids` (int64 [p]) is the prompt that each sync is verified with. `adapters` is the LoRA (rank,
    alpha) where all policies shall share one engine; None: an engine a policy. `sleeps`: the engine, one of
    adapters on a GPU, gives its memory back when told to `sleep`. The first sync starts vLLM.
    """

    def __init__(
        self,
        policies: Policies,
        folder: Path,
        sampling: Sampling,
        *,
        probe_ids: Tensor,
        adapters: tuple[int, int] | None = None,
        sleeps: bool = False,
    ) -> None:
        prepare()
        self._policies = policies
        self._folder = folder
        self._sampling = sampling
        self._probe = Probe(probe_ids)
        self._adapters = adapters
        self._sleeps = sleeps
        self._asleep = False
        self._weights: Weights | None = None
        self._version: int | None = None
        self._pending: dict[str, _Pending] = {}
        self._dead: Exception | None = None
        self._count = itertools.count()
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    # From any thread.

    async def agenerate(self, request: GenerationRequest, *, deadline_s: float | None = None) -> Generation:
        """One generation. Raises `DataError` for a prompt that no model can answer."""
        self._sampling.check(request)
        version = self._version
        if version is None:
            raise UnavailableError(f"{request.agent}: the engine has no weights; sync it first")
        loop = asyncio.get_running_loop()
        pending = _Pending(
            policy=self._policies.policy_of[request.agent],
            version=version,
            loop=loop,
            future=loop.create_future(),
            deadline=None if deadline_s is None else time.monotonic() + deadline_s,
        )
        name = str(next(self._count))
        self._jobs.put(partial(self._add, name, pending, request))
        try:
            return await pending.future
        except asyncio.CancelledError:
            self._jobs.put(partial(self._abort, [name]))
            raise

    def cancel(self) -> None:
        self._jobs.put(self._cancel_all)

    # From one thread only.

    def serve(self, until: Future[Any]) -> None:
        """Sample what other threads ask for, until the future is done."""
        until.add_done_callback(lambda _: self._jobs.put(lambda: None))
        while not until.done():
            try:
                self._do_jobs(wait=not self._pending)
                if self._pending:
                    self._abort_late()
                    self._step()
            except Exception as error:  # noqa: BLE001  (those who wait must hear of it)
                self._die(error)

    def sync(self, version: int) -> None:
        """Load every policy's weights, forget what was cached, and verify, one after the other.

        Raises `SyncError` if an engine does not say of the probe what its policy says.
        """
        self._do_jobs()
        if self._weights is None and self._dead is None:
            self._start()
        weights = self._live()
        if self._pending:
            raise RuntimeError(f"sync while {len(self._pending)} requests are under way")
        self._version = None
        self._wake()
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the learner's last update may be on another stream
        bring_in(weights, self._policies, self._probe, version, ask)
        self._version = version

    def sleep(self) -> None:
        """Give the GPU's memory back until the next `sync`; nothing is being generated.

        Does nothing where the engine was not told that it sleeps.
        """
        self._do_jobs()
        engines = self._engines() if self._sleeps else []
        if self._pending:
            raise RuntimeError(f"sleep while {len(self._pending)} requests are under way")
        if engines and not self._asleep:
            self._version = None
            for engine in engines:
                # Level 1: the base is kept on the host. A sync brings adapters, and not the base again.
                engine.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        pending, self._pending = self._pending, {}
        for item in pending.values():
            item.settle(item.future.cancel)
        with contextlib.ExitStack() as stack:  # each, whatever becomes of the others
            if self._weights is not None:
                stack.callback(self._weights.close)
            for engine in self._engines():
                stack.callback(engine.engine_core.shutdown)
            self._weights = None

    def _do_jobs(self, *, wait: bool = False) -> None:
        """What other threads want done; `wait` for the first of it."""
        while wait or not self._jobs.empty():
            self._jobs.get()()
            wait = False

    def _start(self) -> None:
        model = self._policies.sampler(self._policies.names[0])
        tokens = self._sampling.context_tokens
        start = partial(start_engine, self._folder, model, context_tokens=tokens, sleeps=self._sleeps)
        threads = torch.set_num_threads
        try:
            with stderr_in_log():
                if self._adapters is None:
                    self._weights = MergedWeights(self._policies.names, start)
                else:
                    rank, alpha = self._adapters
                    shared = partial(start, num_adapters=len(self._policies.names), lora_rank=rank)
                    self._weights = AdapterWeights(self._policies, shared, alpha=alpha)
        finally:
            # On a CPU vLLM makes it do nothing, for the whole process.
            torch.set_num_threads = threads

    def _wake(self) -> None:
        if self._asleep:
            # What the learner has freed is still reserved for it.
            torch.cuda.empty_cache()
            for engine in self._engines():
                engine.wake_up()
            self._asleep = False

    def _live(self) -> Weights:
        if self._dead is not None or self._weights is None:
            raise UnavailableError(f"vLLM has stopped ({self._dead!r}); resume the run to start it again")
        return self._weights

    def _add(self, name: str, pending: _Pending, request: GenerationRequest) -> None:
        if pending.future.done():
            return
        try:
            weights = self._live()
        except UnavailableError as error:
            pending.settle(pending.future.set_exception, error)
            return
        params = self._sampling.params(request, in_parts=pending.deadline is not None)
        prompt = prompt_of(request, pending.version)
        self._pending[name] = pending
        engine, adapter = weights.engines[pending.policy], weights.adapter(pending.policy)
        engine.add_request(name, prompt, params, lora_request=adapter)

    def _step(self) -> None:
        """One token of every request of one engine, the first in the team's order that has any.

        So a later agent's first prompts wait for its others, and all are sampled in one large batch, where
        engines in turn would have several small ones: the cores are the same. With deadlines nobody waits.
        """
        busy = [engine for engine in self._engines() if engine.has_unfinished_requests()]
        if all(pending.deadline is None for pending in self._pending.values()):
            busy = busy[:1]
        for engine in busy:
            for output in engine.step():
                self._take(output)

    def _take(self, output: Any) -> None:
        pending = self._pending[output.request_id]
        pending.latest = output
        if output.finished:
            del self._pending[output.request_id]
            truncated = output.outputs[0].finish_reason != "stop"
            answer = generation_of(output, pending.version, truncated=truncated)
            pending.settle(pending.future.set_result, answer)

    def _abort_late(self) -> None:
        now = time.monotonic()
        for name, pending in list(self._pending.items()):
            if pending.deadline is not None and pending.deadline <= now:
                self._abort([name])
                answer = generation_of(pending.latest, pending.version, truncated=True)
                pending.settle(pending.future.set_result, answer)

    def _abort(self, names: Sequence[str]) -> None:
        for name in names:
            pending = self._pending.pop(name, None)
            if pending is not None and self._weights is not None:
                self._weights.engines[pending.policy].abort_request([name])

    def _cancel_all(self) -> None:
        pending = list(self._pending.items())
        self._abort([name for name, _ in pending])
        for _, item in pending:
            item.settle(item.future.cancel)

    def _die(self, error: Exception) -> None:
        log.error("vLLM has stopped", exc_info=error)
        self._dead = error
        words = f"vLLM has stopped ({error!r}); resume the run to start it again"
        for pending in self._pending.values():
            pending.settle(pending.future.set_exception, UnavailableError(words))
        self._pending.clear()

    def _engines(self) -> list[Any]:
        """Each engine once."""
        by_policy = {} if self._weights is None else self._weights.engines
        return list({id(engine): engine for engine in by_policy.values()}.values())

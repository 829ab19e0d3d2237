"""vLLM: prompts are sampled as they come, in batches that change with every token.

The engines live in this process, so weights go from the learner's model straight into them, and a killed run
leaves nothing behind. One thread of ours makes and steps all of them: several threads crash vLLM. On a CPU,
and for agents with whole weights of their own, each agent has an engine; LoRA agents on a GPU share one, with
an adapter each.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mappa_envs.errors import DataError, UnavailableError
from mappa_train.engine.vllm_setup import prepare, start_engine, stderr_in_log
from mappa_train.engine.vllm_weights import AdapterWeights, MergedWeights, Probe, Weights
from mappa_train.policies import Policies
from mappa_train.types import Generation, GenerationRequest

CLOSE_S = 60.0
"""How long closing waits for the step that is being computed."""

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class _Pending:
    """A request under way; `latest` is what was sampled so far, kept where there is a deadline."""

    agent: str
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
    """Samples every agent's actions with vLLM; see `StreamEngine`.

    `probe_ids` (int64 [p]) is the prompt that each sync is verified with. `adapters` is the LoRA (rank,
    alpha) where all agents shall share one engine; None: an engine an agent. The first sync starts vLLM.
    """

    def __init__(
        self,
        policies: Policies,
        folder: Path,
        *,
        stop_ids: Sequence[int],
        context_tokens: int,
        max_new_tokens: int,
        temperature: float,
        probe_ids: Tensor,
        adapters: tuple[int, int] | None = None,
    ) -> None:
        prepare()
        self._policies = policies
        self._folder = folder
        self._stop_ids = list(stop_ids)
        self._context_tokens = context_tokens
        self._max_new_tokens = max_new_tokens
        self._temperature = temperature
        self._probe = Probe(probe_ids)
        self._adapters = adapters
        self._vocabulary = int(policies.sampler(policies.agents[0]).config.vocab_size)
        self._weights: Weights | None = None
        self._version: int | None = None
        self._pending: dict[str, _Pending] = {}
        self._dead: Exception | None = None
        self._count = itertools.count()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()

    # From any thread.

    async def agenerate(self, request: GenerationRequest, *, deadline_s: float | None = None) -> Generation:
        """One generation. Raises `DataError` for a prompt that no model can answer."""
        self._check(request)
        version = self._version
        if version is None:
            raise UnavailableError(f"{request.agent}: the engine has no weights; sync it first")
        loop = asyncio.get_running_loop()
        pending = _Pending(
            agent=request.agent,
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

    def sync(self, version: int) -> None:
        """Load every agent's weights, forget what was cached, and verify, agent by agent.

        Raises `SyncError` if an engine does not say of the probe what its agent's policy says.
        """
        self._call(partial(self._sync, version))

    def cancel(self) -> None:
        self._jobs.put(self._cancel_all)

    def close(self) -> None:
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(CLOSE_S)

    def _call(self, work: Callable[[], None]) -> None:
        """Have the thread do something, and wait for it."""
        done: concurrent.futures.Future[None] = concurrent.futures.Future()

        def job() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  (raised where the work was asked for)
                done.set_exception(error)
            else:
                done.set_result(None)

        self._jobs.put(job)
        done.result()

    def _check(self, request: GenerationRequest) -> None:
        ids, agent = request.prompt_ids, request.agent
        if agent not in self._policies.agents:
            raise DataError(f"{agent!r}: no such agent; there are {', '.join(self._policies.agents)}")
        # With room for a whole action, `length` can only mean that the action was too long.
        room = self._context_tokens - self._max_new_tokens
        if not 1 <= len(ids) <= room:
            raise DataError(
                f"{agent}: a prompt of {len(ids)} tokens; the context of {self._context_tokens}, with room "
                f"for --max-new-tokens {self._max_new_tokens}, takes 1 to {room}"
            )
        if int(ids.min()) < 0 or int(ids.max()) >= self._vocabulary:
            raise DataError(f"{agent}: a prompt has token ids outside the vocabulary of {self._vocabulary}")

    # In the thread only.

    def _run(self) -> None:
        while self._serve():
            pass
        self._shut_down()

    def _serve(self) -> bool:
        """Do what was asked for, then sample one token of every request; False when all is over."""
        try:
            while not self._pending or not self._jobs.empty():
                job = self._jobs.get()
                if job is None:
                    return False
                job()
            self._abort_late()
            self._step()
        except Exception as error:  # noqa: BLE001  (those who wait must hear of it)
            self._die(error)
        return True

    def _start(self) -> None:
        model = self._policies.sampler(self._policies.agents[0])
        start = partial(start_engine, self._folder, model, context_tokens=self._context_tokens)
        threads = torch.set_num_threads
        try:
            with stderr_in_log():
                if self._adapters is None:
                    self._weights = MergedWeights(self._policies.agents, start)
                else:
                    rank, alpha = self._adapters
                    shared = partial(start, num_adapters=len(self._policies.agents), lora_rank=rank)
                    self._weights = AdapterWeights(self._policies, shared, alpha=alpha)
        finally:
            # On a CPU vLLM makes it do nothing, for the whole process.
            torch.set_num_threads = threads

    def _sync(self, version: int) -> None:
        if self._weights is None and self._dead is None:
            self._start()
        weights = self._live()
        if self._pending:
            raise RuntimeError(f"sync while {len(self._pending)} requests are under way")
        self._version = None
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # the learner's last update was launched on another thread
        for agent, engine in weights.engines.items():
            model = self._policies.sampler(agent)  # once: a LoRA agent's adapter is merged each time
            weights.load(agent, version, model)
            if not engine.reset_prefix_cache():
                raise RuntimeError(f"{agent}: vLLM did not forget the prompts of the old weights")
            difference = self._probe.check(agent, engine, weights.adapter(agent), model)
            log.info("version %d of %s is in; its probe differs by %.2g nats", version, agent, difference)
        self._version = version

    def _live(self) -> Weights:
        if self._dead is not None or self._weights is None:
            raise UnavailableError(f"vLLM has stopped ({self._dead!r}); resume the run to start it again")
        return self._weights

    def _add(self, name: str, pending: _Pending, request: GenerationRequest) -> None:
        from vllm import SamplingParams, TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        if pending.future.done():
            return
        try:
            weights = self._live()
        except UnavailableError as error:
            pending.settle(pending.future.set_exception, error)
            return
        last_only = pending.deadline is None
        params = SamplingParams(
            temperature=self._temperature,
            max_tokens=self._max_new_tokens,
            logprobs=0,
            seed=request.seed,
            # Our own set of ids ends an action, and all of it.
            ignore_eos=True,
            stop_token_ids=self._stop_ids,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY if last_only else RequestOutputKind.CUMULATIVE,
        )
        # Parts agents and versions in the cache of prompts, should it ever not be empty after a sync.
        salt = f"{pending.agent}@{pending.version}"
        prompt = TokensPrompt(prompt_token_ids=request.prompt_ids.tolist(), cache_salt=salt)
        self._pending[name] = pending
        engine, adapter = weights.engines[pending.agent], weights.adapter(pending.agent)
        engine.add_request(name, prompt, params, lora_request=adapter)

    def _step(self) -> None:
        for engine in self._engines():
            if engine.has_unfinished_requests():
                for output in engine.step():
                    self._take(output)

    def _take(self, output: Any) -> None:
        pending = self._pending[output.request_id]
        pending.latest = output
        if output.finished:
            del self._pending[output.request_id]
            truncated = output.outputs[0].finish_reason != "stop"
            answer = _generation(output, pending.version, truncated=truncated)
            pending.settle(pending.future.set_result, answer)

    def _abort_late(self) -> None:
        now = time.monotonic()
        for name, pending in list(self._pending.items()):
            if pending.deadline is not None and pending.deadline <= now:
                self._abort([name])
                answer = _generation(pending.latest, pending.version, truncated=True)
                pending.settle(pending.future.set_result, answer)

    def _abort(self, names: Sequence[str]) -> None:
        for name in names:
            pending = self._pending.pop(name, None)
            if pending is not None and self._weights is not None:
                self._weights.engines[pending.agent].abort_request([name])

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
        by_agent = {} if self._weights is None else self._weights.engines
        return list({id(engine): engine for engine in by_agent.values()}.values())

    def _shut_down(self) -> None:
        self._cancel_all()
        for engine in self._engines():
            engine.engine_core.shutdown()
        if self._weights is not None:
            self._weights.close()
        self._weights = None


def _generation(output: Any, version: int, *, truncated: bool) -> Generation:
    """What vLLM sampled as ours; `output` is None where a deadline came before the first token."""
    ids = [] if output is None else list(output.outputs[0].token_ids)
    entries = [] if output is None else output.outputs[0].logprobs
    logprobs = [entry[token].logprob for entry, token in zip(entries, ids, strict=True)]
    return Generation(
        token_ids=torch.tensor(ids, dtype=torch.int64),
        logprobs=torch.tensor(logprobs, dtype=torch.float32),
        truncated=truncated,
        policy_version=version,
    )

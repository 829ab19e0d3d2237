"""vLLM in processes of its own, on GPUs of its own: the learner keeps its memory, and a model may be split.

Each policy has an engine (`AsyncLLM`), into which its whole weights are sent; adapters share one. All engines
are talked to from one event loop, in a thread of ours. On a CPU it works as well, with weights sent as files;
there it is of use for tests only.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import logging
import multiprocessing
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from functools import partial
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mappa_envs.errors import UnavailableError
from mappa_train.engine.vllm_sampling import Sampling, generation_of, prompt_of
from mappa_train.engine.vllm_setup import prepare, start_own_processes, stderr_into
from mappa_train.engine.vllm_transfer import Backend, Remote, TransferredWeights
from mappa_train.engine.vllm_weights import AdapterWeights, Probe, SyncError, Weights, bring_in
from mappa_train.policies import Policies
from mappa_train.types import Generation, GenerationRequest

END_S = 30.0
"""How long vLLM's processes may take to end by themselves; then they are killed."""

CLOSE_S = 2 * END_S
"""How long closing waits for all of that."""

_TAIL = 4000
"""Characters of what the processes wrote to stderr that go to the log when they end."""

log = logging.getLogger(__name__)


class AsyncVllmEngine:
    """Samples every agent's actions with vLLM in other processes; see `StreamEngine`.

    `gpus` are the numbers of the visible GPUs of each engine (empty: the CPU), tensor parallel over several;
    `backend` is how whole weights get there. `adapters` is the LoRA (rank, alpha) where all policies
    shall share the first engine; None: an engine a policy. `probe_ids` (int64 [p]) is the prompt that each
    sync is verified with. The first sync starts vLLM.
    """

    def __init__(
        self,
        policies: Policies,
        folder: Path,
        sampling: Sampling,
        *,
        probe_ids: Tensor,
        gpus: Sequence[Sequence[int]],
        backend: Backend,
        adapters: tuple[int, int] | None = None,
    ) -> None:
        prepare(own_processes=True)
        self._policies = policies
        self._folder = folder
        self._sampling = sampling
        self._probe = Probe(probe_ids)
        self._gpus = gpus
        self._backend: Backend = backend
        self._adapters = adapters
        self._remotes: list[Remote] = []
        self._weights: Weights | None = None
        self._version: int | None = None
        self._why_dead: str | None = None
        self._count = itertools.count()
        self._starting = False
        self._running: set[concurrent.futures.Future[Generation]] = set()
        # vLLM's processes append to it as long as they live.
        self._stderr = tempfile.TemporaryFile("a+b")  # noqa: SIM115
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="vllm", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        # Ctrl-C is for this process, which ends vLLM's in good order: they inherit this thread's mask. What
        # multiprocessing starts with the first of them would lift it, if it did not run yet.
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self._loop.run_forever()

    async def agenerate(self, request: GenerationRequest, *, deadline_s: float | None = None) -> Generation:
        """One generation. Raises `DataError` for a prompt that no model can answer."""
        self._sampling.check(request)
        weights, version = self._live(), self._version
        if weights is None or version is None:
            raise UnavailableError(f"{request.agent}: the engine has no weights; sync it first")
        work = self._sample(weights, version, request, deadline_s)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(future)

    def sync(self, version: int) -> None:
        """Load every policy's weights, forget what was cached, and verify, one after the other.

        Raises `SyncError` if an engine does not say of the probe what its policy says.
        """
        if self._running:
            raise RuntimeError(f"sync while {len(self._running)} requests are under way")
        self._live()
        self._version = None
        try:
            weights = self._weights = self._weights or self._start()
            self._starting = False
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            bring_in(weights, self._policies, self._probe, version, Remote.ask)
            for remote in self._remotes:
                remote.name_version(version)
        except UnavailableError as error:
            raise self._die(error) from error
        self._version = version

    def cancel(self) -> None:
        for future in list(self._running):
            future.cancel()

    def close(self) -> None:
        with contextlib.ExitStack() as stack:  # each, whatever becomes of the others
            stack.callback(self._stderr.close)
            stack.callback(self._stop_loop)
            if self._weights is not None:
                stack.callback(self._weights.close)
                self._weights = None
            if self._thread.is_alive():
                self._end_processes()

    def _end_processes(self) -> None:
        self.cancel()
        done = asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop)
        end = time.monotonic() + CLOSE_S
        while concurrent.futures.wait([done], 1.0).not_done and time.monotonic() < end:
            if self._starting:  # after Ctrl-C; the start cannot be interrupted otherwise
                for child in multiprocessing.active_children():
                    if child.name.startswith("EngineCore"):
                        child.kill()

    def _stop_loop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0)
        if not self._thread.is_alive():  # else vLLM's start still blocks it
            self._loop.close()

    def _live(self) -> Weights | None:
        """The weights, None before the first sync. Raises `UnavailableError` if an engine has died."""
        if self._why_dead is not None:
            raise UnavailableError(self._why_dead)
        return self._weights

    def _start(self) -> Weights:
        self._starting = True
        try:
            with stderr_into(self._stderr):
                return self._start_all()
        except Exception as error:  # and not Ctrl-C: `close` then kills what is still starting
            self._starting = False
            if isinstance(error, UnavailableError):
                why = f"vLLM did not start: {error}; run.log has what its processes wrote"
                raise self._die(error, why) from error
            raise

    def _start_all(self) -> Weights:
        names = self._policies.names
        if self._adapters is None:
            start = partial(self._start_one, backend=self._backend)
            return TransferredWeights(names, start, self._backend)
        rank, alpha = self._adapters
        shared = partial(self._start_one, 0, num_adapters=len(names), lora_rank=rank)
        return AdapterWeights(self._policies, shared, alpha=alpha)

    def _start_one(self, index: int, *, backend: Backend | None = None, **options: int) -> Remote:
        model = self._policies.sampler(self._policies.names[0])
        options["context_tokens"] = self._sampling.context_tokens

        async def start() -> Any:
            # It blocks the loop, in which nothing else is to be done yet: it makes its tasks in there.
            return start_own_processes(
                self._folder, model, gpus=self._gpus[index], backend=backend, **options
            )

        try:
            engine = asyncio.run_coroutine_threadsafe(start(), self._loop).result()
        except RuntimeError as error:  # all that vLLM says of what went wrong in a process of its own
            raise UnavailableError(str(error)) from error
        remote = Remote(engine, self._loop)
        self._remotes.append(remote)
        return remote

    def _die(self, error: Exception, why: str | None = None) -> UnavailableError:
        """Keep in mind that an engine is dead, and why; and the error for those who wait."""
        if self._why_dead is None:
            said = str(error) if isinstance(error, UnavailableError) else repr(error)
            self._why_dead = why or f"vLLM has stopped ({said}); resume the run to start it again"
            self._stderr.seek(0)
            tail = self._stderr.read().decode("utf-8", "replace").strip()[-_TAIL:]
            log.error("%s\nits processes wrote:\n%s", self._why_dead, tail or "nothing", exc_info=error)
        return UnavailableError(self._why_dead)

    # In the loop's thread only.

    async def _sample(
        self, weights: Weights, version: int, request: GenerationRequest, deadline_s: float | None
    ) -> Generation:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        policy = self._policies.policy_of[request.agent]
        answers = weights.engines[policy].engine.generate(
            prompt_of(request, version),
            self._sampling.params(request, in_parts=deadline_s is not None),
            str(next(self._count)),
            lora_request=weights.adapter(policy),
        )
        latest = None
        try:
            async with asyncio.timeout(deadline_s), contextlib.aclosing(answers):
                async for answer in answers:
                    latest = answer
        except TimeoutError:
            return generation_of(latest, version, truncated=True)
        except (EngineDeadError, EngineGenerateError) as error:
            raise self._die(error) from error
        return _finished(request.agent, latest, version)

    async def _shut_down(self) -> None:
        engines = [remote.engine for remote in self._remotes]
        for engine in engines:
            if engine.output_handler is not None:
                engine.output_handler.cancel()  # it would report the end of the processes as a failure
        await asyncio.gather(*(asyncio.to_thread(engine.shutdown, timeout=END_S) for engine in engines))
        self._remotes.clear()


def _finished(agent: str, output: Any, version: int) -> Generation:
    """A whole answer. Raises `SyncError` if other weights than those of `version` had a part in it."""
    answer = output.outputs[0]
    if answer.finish_reason == "abort":
        raise asyncio.CancelledError
    versions = {span.version for span in answer.weight_versions}
    if versions != {str(version)}:
        raise SyncError(
            f"{agent}: an action was sampled with weights of version {', '.join(sorted(versions))}, and the "
            f"policy is at {version}"
        )
    return generation_of(output, version, truncated=answer.finish_reason != "stop")

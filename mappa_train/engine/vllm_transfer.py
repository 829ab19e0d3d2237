"""Whole weights into vLLM's own processes, by vLLM's own transfer: over NCCL, or as files without a GPU.

vLLM drives a transfer from the learner's side: it asks a client, here `Remote`, to get the engine's processes
ready, and sends them what a source, here `LiveWeights`, gives. Checked against the sources of vLLM 0.32.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from mappa_envs.errors import UnavailableError, boundary
from mappa_train.engine.vllm_weights import named_weights

Backend = Literal["nccl", "file"]

T = TypeVar("T")

ANSWER_S = 600.0
"""How long an engine may take over anything but sampling: to load the weights of a large model, say."""

_LOOK_S = 0.5
"""How often a waiting call looks whether the engine is still alive; vLLM does not tell it."""


class Remote:
    """An `AsyncLLM` as other threads than its event loop's see it: every call blocks.

    Raises `UnavailableError` if the engine's processes end, fail at what they are asked, or give no answer
    for `ANSWER_S`.
    """

    def __init__(self, engine: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.engine = engine
        self.vllm_config = engine.vllm_config
        self._loop = loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        request = WeightTransferInitRequest(init_info=init_info)
        self._wait(self.engine.init_weight_transfer_engine(request))

    def start_weight_update(self) -> None:
        self._wait(self.engine.start_weight_update())

    def update_weights(self, update_info: dict[str, Any]) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        self._wait(self.engine.update_weights(WeightTransferUpdateRequest(update_info=update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._wait(self.engine.finish_weight_update(weight_version))

    def pause(self) -> None:
        """Sample nothing, and forget all prompts, until `resume`."""
        self._wait(self.engine.pause_generation(mode="abort", clear_cache=True))

    def resume(self) -> None:
        self._wait(self.engine.resume_generation())

    def name_version(self, version: int) -> None:
        """Have every sampled token carry this version of the weights."""
        self._wait(self.engine.update_weight_version(str(version)))

    def reset_prefix_cache(self) -> bool:
        return bool(self._wait(self.engine.reset_prefix_cache()))

    def add_lora(self, request: Any) -> None:
        self._wait(self.engine.add_lora(request))

    def remove_lora(self, number: int) -> None:
        self._wait(self.engine.remove_lora(number))

    def ask(self, prompt: Any, params: Any, adapter: Any) -> Any:
        """The finished answer to one prompt."""

        async def last() -> Any:
            answers = self.engine.generate(prompt, params, "probe", lora_request=adapter)
            return [answer async for answer in answers][-1]

        return self._wait(last())

    def take_part(self, work: Callable[[], T]) -> T:
        """Do what waits for the engine's processes itself, such as a broadcast, which has no time limit.

        In a thread of its own also because vLLM leaves a thread that opens NCCL on a stream of its own.
        """
        done: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                found = work()
            except BaseException as error:  # noqa: BLE001  (raised where the work was asked for)
                done.set_exception(error)
            else:
                done.set_result(found)

        threading.Thread(target=run, name="transfer", daemon=True).start()
        return self._watch(done)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return self._watch(future)
        except UnavailableError:
            raise
        except Exception as error:  # of whatever kind: what goes wrong in vLLM's processes is told in words
            raise UnavailableError(f"{type(error).__name__}: {error}") from error
        finally:
            future.cancel()

    def _watch(self, future: concurrent.futures.Future[T]) -> T:
        end = time.monotonic() + ANSWER_S
        while True:
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():  # since then, or with a timeout of its own
                    return future.result()
                if self.engine.errored:
                    raise UnavailableError("vLLM's processes have ended") from None
                if time.monotonic() > end:
                    raise UnavailableError(f"vLLM gave no answer within {ANSWER_S:g} s") from None


class LiveWeights:
    """The weights of a live model as vLLM's transfer asks for them, in the engine's type.

    Stands for a `WeightSource` of vLLM. `model` is set before each transfer, which goes tensor by tensor.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.model: Any = None
        self._dtype = dtype

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        named = named_weights(self.model).items()
        return [ParamMeta(name=name, dtype=self._dtype, shape=tuple(value.shape)) for name, value in named]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in named_weights(self.model).items():
            yield name, value.to(self._dtype)


class TransferredWeights:
    """An engine a policy in processes of its own, and its whole weights sent there."""

    def __init__(self, names: Sequence[str], start: Callable[[int], Remote], backend: Backend) -> None:
        self.engines = {policy: start(k) for k, policy in enumerate(names)}
        self._sources = {
            policy: LiveWeights(remote.vllm_config.model_config.dtype)
            for policy, remote in self.engines.items()
        }
        self._senders: dict[str, Any] = {}
        with ExitStack() as stack:
            for policy, remote in self.engines.items():
                self._senders[policy] = connect(remote, self._sources[policy], backend)
                stack.callback(self._senders[policy].shutdown)
            self._shut_down = stack.pop_all()  # all are connected: open until `close`

    def load(self, policy: str, version: int, model: Any) -> None:
        remote = self.engines[policy]
        self._sources[policy].model = model
        remote.pause()
        remote.take_part(self._senders[policy].send_weights)
        remote.resume()

    def adapter(self, policy: str) -> Any:
        return None

    def close(self) -> None:
        self._shut_down.close()


def connect(remote: Remote, source: LiveWeights, backend: Backend) -> Any:
    """What sends the weights of `source` into an engine that was started with the same backend."""
    if backend == "file":
        return FileSender(remote, source)
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    parallel = remote.vllm_config.parallel_config
    init = NCCLTrainerInitInfo(
        master_address="127.0.0.1",
        master_port=_free_port(),
        # This process, and every process of the engine that has a part of the model.
        world_size=1 + parallel.world_size,
        rank=0,
    )
    join = partial(WeightTransferTrainerFactory.trainer_init, init, client=remote, source=source)
    with boundary(UnavailableError, "NCCL between the learner and vLLM", RuntimeError):
        return remote.take_part(join)


class FileSender:
    """Sends weights as a file, which is gone when the engine has read it. The other end is `FileEngine`."""

    def __init__(self, client: Remote, source: LiveWeights) -> None:
        self._client = client
        self._source = source
        client.init_weight_transfer_engine({})

    def send_weights(self) -> None:
        memory = Path("/dev/shm")
        with tempfile.TemporaryDirectory(
            prefix="mappa-weights-", dir=memory if memory.is_dir() else None
        ) as folder:
            path = Path(folder) / "weights.safetensors"
            save_file({name: value.contiguous() for name, value in self._source}, path)
            self._client.start_weight_update()
            self._client.update_weights({"path": str(path)})
            self._client.finish_weight_update()

    def shutdown(self) -> None:
        """Nothing is held between transfers."""


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

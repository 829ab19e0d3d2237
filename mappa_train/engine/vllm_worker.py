"""What of this project runs inside vLLM's own processes; vLLM loads it there by the name of `Extension`.

It ends them with the process that they sample for, however that ends, and receives weights as files where
there is no GPU.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

from safetensors.torch import load_file
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from mappa_train.engine.vllm_owner import end_with
from mappa_train.engine.vllm_setup import OWNER
from mappa_train.engine.vllm_weights import pack_tied_head


class Extension:
    """Nothing of its own: naming it as the worker's extension loads this module before the model."""


@dataclass
class FileInit(WeightTransferInitInfo):  # type: ignore[misc]  # vLLM may be missing where types are checked
    """Of the transfer as files; there is nothing to agree on."""


@dataclass
class FileUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """All weights of a model in one file of safetensors."""

    path: str


class FileEngine(WeightTransferEngine):  # type: ignore[misc]
    """Receives whole weights as a file, for a CPU: vLLM's own ways need CUDA."""

    init_info_cls = FileInit
    update_info_cls = FileUpdate

    def init_transfer_engine(self, init_info: FileInit) -> None:
        """Nothing to connect."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FileUpdate) -> None:
        self.model.load_weights(load_file(update_info.path).items())

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)
        pack_tied_head(self.model)

    def shutdown(self) -> None:
        """Nothing to disconnect."""


def _register() -> None:
    backends: Any = WeightTransferEngineFactory
    backends.register_engine("file", FileEngine)
    if owner := os.environ.get(OWNER):
        threading.Thread(target=end_with, args=(int(owner),), name="owner", daemon=True).start()


_register()

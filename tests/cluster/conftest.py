"""One cluster of simulated nodes for all tests here, and what they train."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from processes import MARK

# The tiny model that the tests of the trainer have.
sys.path.insert(0, str(Path(__file__).parents[1] / "train"))

STORE_BYTES = 100 << 20
END = contextlib.ExitStack()
"""What is to be done when the tests of this folder are over."""


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Ray's processes take part of the machine, which is no use to the tests of other folders."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        END.close()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    utils = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed")
    import ray

    os.environ["RAY_memory_monitor_refresh_ms"] = "0"  # noqa: SIM112  (other jobs fill this machine)
    os.environ[MARK] = "session"  # inherited by every process of the cluster
    made = utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": STORE_BYTES}
    )
    END.callback(os.environ.pop, MARK)
    END.callback(made.shutdown)
    END.callback(ray.shutdown)
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    END.close()


@pytest.fixture
def second_node(cluster: Any) -> Any:
    """The node beside the head; a test may take it away."""
    if not cluster.worker_nodes:
        cluster.add_node(num_cpus=2, object_store_memory=STORE_BYTES)
        cluster.wait_for_nodes()
    (node,) = cluster.worker_nodes
    return node


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tiny import make_model

    return make_model(tmp_path_factory.mktemp("model"))

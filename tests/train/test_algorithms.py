"""Each algorithm by its formula on numbers worked out by hand; how they are found, chosen and plugged in."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from parity import make_batch
from ranks import delta_of_updates
from tiny import AGENTS, make_config, make_model, make_policies, make_samples, weights
from torch import Tensor

from mappa_envs.errors import ConfigError
from mappa_train.algorithms import Algorithm, find_algorithm, list_algorithms, register_algorithm
from mappa_train.algorithms.reinforce_pp import ReinforcePP
from mappa_train.config import to_toml
from mappa_train.learner import Learner
from mappa_train.schedule import learning_rate
from mappa_train.settings import read_settings, resolve

DOCS = Path(__file__).parents[2] / "docs" / "algorithms.md"
NAMES = ("grpo", "outcome", "ppo_clip", "reinforce_pp", "reinforce_pp_baseline", "rloo")
RETS = (0.9, 0.2, 0.1, 0.8, 0.5, 0.4, 0.7, 0.3)

# Two groups, {0.2, 0.8} and {0.5, 0.5, 0.8}, and one action alone; 1 or 2 tokens each.
RETURNS = torch.tensor([0.2, 0.8, 0.5, 0.5, 0.8, 0.9])
GROUPS = torch.tensor([0, 0, 1, 1, 1, 2])
LENGTHS = torch.tensor([2, 1, 1, 1, 1, 2])
# The penalty to go with β = 0.5: the first action's tokens differ by 0.2 and 0.4 nats, the others' by 0.
DIFFERENCES = torch.tensor([0.2, 0.4, 0, 0, 0, 0, 0, 0])
PENALTIES = torch.tensor([-0.3, -0.2, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
STD = math.sqrt((0.1**2 + 0.1**2 + 0.2**2) / 2)
"""Sample deviation of {0.5, 0.5, 0.8}; that of {0.2, 0.8} is 0.3·√2."""


def advantages(name: str) -> Tensor:
    zeros = torch.zeros(int(LENGTHS.sum()))
    batch = make_batch(RETURNS, GROUPS, LENGTHS, zeros + DIFFERENCES, zeros, beta=0.5)
    return find_algorithm(name)().advantages(batch).double()


def tokens(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).repeat_interleave(LENGTHS) + PENALTIES


def white(values: Tensor) -> Tensor:
    return (values - values.mean()) / values.std(correction=0)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("reinforce_pp", white(tokens(0.2, 0.8, 0.5, 0.5, 0.8, 0.9))),
        ("outcome", white(tokens(0.2, 0.8, 0.5, 0.5, 0.8, 0.9))),
        ("ppo_clip", tokens(0.2, 0.8, 0.5, 0.5, 0.8, 0.9)),
        ("reinforce_pp_baseline", white(tokens(-0.3, 0.3, -0.1, -0.1, 0.2, 0.0))),
        ("grpo", tokens(-1 / math.sqrt(2), 1 / math.sqrt(2), -0.1 / STD, -0.1 / STD, 0.2 / STD, 0.0)),
        # Minus the mean of the others: 0.8; 0.2; (0.5 + 0.8)/2 twice; 0.5; nobody.
        ("rloo", tokens(-0.6, 0.6, -0.15, -0.15, 0.3, 0.0)),
    ],
)
def test_advantages_are_those_of_the_formula(name: str, wanted: Tensor) -> None:
    torch.testing.assert_close(advantages(name), wanted, atol=1e-5, rtol=0)


def test_every_algorithm_has_its_formula_tested_and_a_row_in_the_docs() -> None:
    assert tuple(name for name in list_algorithms() if not name.startswith("of_a_test")) == NAMES
    page = DOCS.read_text("utf-8")
    assert all(f"\n| `{name}` |" in page for name in NAMES)


def test_a_group_without_differences_teaches_nothing() -> None:
    batch = make_batch(torch.tensor([0.7, 0.7 + 1e-6]), torch.tensor([0, 0]), torch.tensor([1, 1]))
    assert find_algorithm("grpo")().advantages(batch).tolist() == [0.0, 0.0]


def test_the_surrogate_is_clipped_where_it_would_gain() -> None:
    log_ratio = torch.tensor([0.5, -0.5, 0.5, -0.5, 0.1])
    objective, clipped = find_algorithm("reinforce_pp")().surrogate(
        log_ratio, torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0]), 0.2
    )
    wanted = [1.2, math.exp(-0.5), -math.exp(0.5), -0.8, math.exp(0.1)]
    torch.testing.assert_close(objective, torch.tensor(wanted))
    assert clipped.tolist() == [True, False, False, True, False]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def there(folder: Path) -> Tensor:
    """What one update of REINFORCE++ does to the weights."""
    return delta_of_updates(folder)


@register_algorithm("of_a_test")
class Backwards(Algorithm):
    """Makes good actions unlikely: what it says must be what happens."""

    def advantages(self, batch: Any) -> Tensor:
        return -batch.whiten(batch.tokens(batch.returns))


class Broken(Algorithm):
    def advantages(self, batch: Any) -> Tensor:
        return torch.zeros(3)


class NotFinite(Algorithm):
    def advantages(self, batch: Any) -> Tensor:
        values = batch.tokens(batch.returns)
        values[:2] = torch.tensor([math.nan, math.inf])
        return values


class AsList(Algorithm):
    def advantages(self, batch: Any) -> Any:
        return batch.tokens(batch.returns).tolist()


class OneObjective(ReinforcePP):
    def surrogate(self, log_ratio: Tensor, advantages: Tensor, clip: float) -> Any:
        return super().surrogate(log_ratio, advantages, clip)[0]


class Abstract(Algorithm):
    pass


def test_a_registered_algorithm_decides_the_update(folder: Path, there: Tensor) -> None:
    """The mirror of REINFORCE++ moves the weights the other way; Adam's first step only knows signs."""
    back = delta_of_updates(folder, algorithm="of_a_test")
    assert there.norm() > 1e-3
    assert float((there + back).norm() / there.norm()) < 1e-3


def test_an_algorithm_by_name_is_not_the_default(folder: Path, there: Tensor) -> None:
    changed = delta_of_updates(folder, algorithm="grpo")
    assert changed.norm() > 1e-3
    assert float((changed - there).norm() / changed.norm()) > 0.01


def test_advantages_of_the_wrong_shape_are_refused(folder: Path) -> None:
    policies = make_policies(folder)
    before = weights(policies, AGENTS[0])
    learner = Learner(policies, make_config(algorithm=f"{__name__}:Broken"))
    with pytest.raises(
        ConfigError, match=r"Broken.advantages returned a tensor of shape \(3,\) for \d+ tokens"
    ):
        learner.update(make_samples(policies, RETS))
    assert torch.equal(weights(policies, AGENTS[0]), before)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "NotFinite",
            r"NotFinite\.advantages returned numbers of which 2 of \d+ are not finite: return one finite",
        ),
        (
            "AsList",
            r"AsList\.advantages returned what is no tensor \(list\) for \d+ tokens: return a tensor of",
        ),
        (
            "OneObjective",
            r"OneObjective\.surrogate returned a tensor of shape \(\d+,\) for \d+ tokens: return two",
        ),
    ],
)
def test_what_an_algorithm_must_not_return_is_named(folder: Path, name: str, words: str) -> None:
    policies = make_policies(folder)
    learner = Learner(policies, make_config(algorithm=f"{__name__}:{name}"))
    with pytest.raises(ConfigError, match=words):
        learner.update(make_samples(policies, RETS))


def test_actions_without_a_companion_are_warned_about(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    policies = make_policies(folder)
    samples = [
        dataclasses.replace(s, task_id=f"task {k}") if k < 6 else s
        for k, s in enumerate(make_samples(policies, RETS))
    ]
    with caplog.at_level(logging.WARNING):
        Learner(policies, make_config(algorithm="rloo")).update([*samples[:6], samples[6]])
    assert "7 of 7 actions have no other" in caplog.text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"algorithm": "grp"}, "did you mean grpo"),
        ({"algorithm": "no_such_module:X"}, "cannot be imported"),
        ({"algorithm": f"{__name__}:Missing"}, "has no 'Missing'; there are Backwards, Broken, "),
        ({"algorithm": "math:Missing"}, "math has no 'Missing'; nor any other subclass of Algorithm"),
        ({"algorithm": "my_algorithms.DualClip"}, "did you mean my_algorithms:DualClip?"),
        ({"algorithm": ".:X"}, "cannot be imported"),
        ({"algorithm": "rloo", "samples_per_task": "2", "episodes_per_step": "5"}, "-step 5 alone"),
        ({"algorithm": "math:pi"}, "not a subclass"),
        ({"algorithm": f"{__name__}:Abstract"}, "no method `advantages`"),
        ({"algorithm": "grpo", "norm": "global"}, "--norm global: --algorithm grpo needs --norm none"),
        ({"algorithm": "outcome", "returns": "to_go"}, "--returns to_go: --algorithm outcome"),
        ({"algorithm": "rloo", "samples_per_task": "1"}, "--samples-per-task 1: --algorithm rloo compares"),
        ({"algorithm": "rloo", "episodes_per_step": "1"}, "compares episodes"),
        ({"actions_per_update": "16", "minibatches": "2"}, "leave one out"),
        ({"min_lr": "1e-5"}, "--schedule cosine"),
        ({"min_lr": "1", "schedule": "cosine"}, "at most --lr"),
        ({"kl": "loss", "beta": "0"}, "--beta 0"),
        ({"adam_beta2": "1"}, "at most"),
    ],
)
def test_settings_that_contradict_or_do_nothing_are_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        resolve(settings)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise RuntimeError('a\\nb')", "cannot be imported (RuntimeError: a)"),
        ("raise SystemExit(4)", "cannot be imported (SystemExit: 4)"),
        ("def Mine(): ...", "not a subclass"),
        ("class Mine(RLOO):\n    fixed = None", "must map settings to values, not be None"),
        ("class Mine(RLOO):\n    fixed = {'nrom': 'none'}", "did you mean norm?"),
        ("class Mine(RLOO):\n    fixed = {'norm': None}", "norm None: must be one of global"),
        ("class Mine(RLOO):\n    fixed = {'steps': 'x'}", "must be a whole number"),
        ("class Mine(RLOO):\n    def __init__(self, x): ...", "Mine() cannot be made without arguments"),
    ],
)
def test_an_algorithm_of_ones_own_that_does_not_work_is_named(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"own_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(f"from mappa_train.algorithms.rloo import RLOO\n{code}\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        resolve({"algorithm": f"{name}:Mine"})
    assert f"--algorithm {name}:Mine" in str(caught.value)


def test_an_algorithm_brings_its_settings_and_reads_back_equal(tmp_path: Path) -> None:
    config = resolve({"algorithm": "grpo"})
    assert (config.norm, resolve({"algorithm": "outcome"}).returns) == ("none", "outcome")
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert resolve({}, file=path) == config
    # A preset's algorithm gives way to one that is asked for, and so do the settings that belong to it.
    assert resolve({"algorithm": "grpo"}, preset="paper-mathchat").norm == "none"
    path.write_text('algorithm = "grpo"\n')
    with pytest.raises(ConfigError, match="norm global"):
        resolve({"norm": "global"}, file=path)


class WideClip(ReinforcePP):
    """Fixes what does nothing while a step has one minibatch and one epoch."""

    fixed = {"clip": 0.3}  # noqa: RUF012


def test_an_algorithm_may_fix_what_does_nothing_yet(tmp_path: Path) -> None:
    """Put back at its default, it would contradict the algorithm when the run is resumed."""
    config = resolve({"algorithm": f"{__name__}:WideClip"})
    assert config.clip == 0.3
    path = tmp_path / "config.toml"
    path.write_text(to_toml(config))
    assert resolve(read_settings(path), takes_idle=True) == config
    assert resolve({}, file=path) == config


def test_a_name_is_given_once() -> None:
    assert register_algorithm("of_a_test")(Backwards) is Backwards
    with pytest.raises(ConfigError, match="taken by Backwards"):
        register_algorithm("of_a_test")(Broken)


def test_choosing_an_algorithm_loads_no_torch() -> None:
    probe = (
        "import sys; from mappa_train.settings import resolve; resolve({'algorithm': 'grpo'}); "
        "print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"


def test_the_cosine_schedule_by_hand() -> None:
    config = resolve({"schedule": "cosine", "warmup": "0.1", "lr": "1", "min_lr": "0.2"})
    assert learning_rate(config, 0.0, 0.05) == pytest.approx(0.5)
    assert learning_rate(config, 0.05, 0.1) == pytest.approx(1.0)
    assert learning_rate(config, 0.1, 0.2) == pytest.approx(1.0)
    assert learning_rate(config, 0.55, 0.6) == pytest.approx(0.6)  # half-way: the mean of lr and min_lr
    # At the end and, should a run go on, after it: never up again.
    assert learning_rate(config, 1.0, 1.1) == learning_rate(config, 1.7, 1.8) == pytest.approx(0.2)
    constant = resolve({"lr": "0.5", "warmup": "0.2"})
    assert [learning_rate(constant, x, x + 0.1) for x in (0.0, 0.1, 0.9)] == [0.25, 0.5, 0.5]


def test_a_scheduled_run_that_was_resumed_goes_on_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    config = make_config(schedule="cosine", min_lr=1e-5, warmup=0.3, steps=3, minibatches=2)
    policies = make_policies(folder)
    learner = Learner(policies, config)
    learner.update(make_samples(policies, RETS))
    kept = {agent: {n: v.clone() for n, v in policies.state(agent).items()} for agent in AGENTS}
    torch.save(learner.state(), tmp_path / "state.pt")
    other = make_policies(folder)
    for agent in AGENTS:
        other.load_state(agent, kept[agent])
    resumed = Learner(other, config)
    resumed.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    samples = make_samples(policies, RETS[::-1], version=1)
    rates = []
    for one in (learner, resumed):
        torch.manual_seed(5)
        updates, _ = one.update(samples)
        rates.append(updates[AGENTS[0]].lr)
    assert rates[0] == rates[1] < config.lr
    assert all(torch.equal(weights(policies, agent), weights(other, agent)) for agent in AGENTS)


def test_the_presets_are_the_paper() -> None:
    for preset in ("paper-dsbench", "paper-mathchat"):
        config = resolve({}, preset=preset)
        assert (config.returns, config.norm, config.truncated) == ("to_go", "global", "mask")
        assert (config.actions_per_update, config.adam_beta2, config.beta) == (16, 0.95, 0.01)
        assert (config.lr, config.min_lr, config.schedule, config.warmup) == (1e-6, 1e-7, "cosine", 0.03)
    released = resolve({}, preset="official-compat")
    assert (released.returns, released.norm, released.loss_mean) == ("per_action", "agent", "sequence")


@pytest.mark.slow
def test_the_algorithm_of_the_docs_runs_as_written(tmp_path: Path) -> None:
    """`my_algorithms.py` of the page, saved where the command is run; and its python block."""
    blocks = re.findall(r"^```python\n(.*?)^```$", DOCS.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    (tmp_path / "my_algorithms.py").write_text(blocks[0])
    flags = ["--algorithm", "my_algorithms:DualClip", "--dry-run"]
    done = subprocess.run(
        [sys.executable, "-m", "mappa_train", *flags],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 'algorithm = "my_algorithms:DualClip"' in done.stdout, done.stderr
    ran = subprocess.run(
        [sys.executable, "-c", blocks[1]], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["-3.0", "0.0"], ran.stderr

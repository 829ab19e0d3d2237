"""Make the golden tensors of `test_parity` from the published functions of OpenRLHF, verl and TRL.

    pip download --no-deps -d wheels openrlhf==0.11.2 verl==0.9.1 trl==1.16.0
    PYTHONPATH=. python tests/train/make_golden.py wheels

Single functions are taken out of the wheels' sources and run: nothing is installed, none of the packages is
imported. Prints the largest differences to ours over many random batches; a few go into golden/parity.json.
"""

from __future__ import annotations

import ast
import itertools
import json
import random
import sys
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import parity
import torch
from torch import Tensor

GOLDEN = Path(__file__).parent / "golden" / "parity.json"
NUM_BATCHES = 200
NUM_KEPT = 4


class Wheels:
    """The sources of the wheels in a folder."""

    def __init__(self, folder: Path) -> None:
        self.files: dict[str, str] = {}
        self.names = sorted(path.name for path in folder.glob("*.whl"))
        for path in folder.glob("*.whl"):
            with zipfile.ZipFile(path) as archive:
                for name in archive.namelist():
                    if name.endswith(".py"):
                        self.files[name.split("/purelib/")[-1]] = archive.read(name).decode()

    def take(self, path: str, names: Sequence[str], namespace: dict[str, Any]) -> SimpleNamespace:
        """Run the definitions `names` ("function", "Class", "Class.method", "CONSTANT") of one file."""
        for node in ast.parse(self.files[path]).body:
            inner = (
                [(f"{node.name}.", child) for child in node.body] if isinstance(node, ast.ClassDef) else []
            )
            for prefix, item in [("", node), *inner]:
                name = getattr(item, "name", None)
                if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                    name = item.targets[0].id
                if name is not None and prefix + name in names:
                    run([bare(item)], path, namespace)
        return SimpleNamespace(**namespace)

    def statements(self, path: str, method: str, start: str, end: str) -> list[ast.stmt]:
        """The statements of a method from the first whose source begins with `start` to that with `end`."""
        for node in ast.walk(ast.parse(self.files[path])):
            if isinstance(node, ast.FunctionDef) and node.name == method:
                sources = [ast.unparse(item) for item in node.body]
                first = next(k for k, source in enumerate(sources) if source.startswith(start))
                last = next(k for k, s in enumerate(sources) if k >= first and s.startswith(end))
                return node.body[first : last + 1]
        raise LookupError(f"{path}: no {method}")


def bare(node: Any) -> Any:
    """Without decorators and annotations, whose names are not there."""
    for item in ast.walk(node):
        if isinstance(item, ast.FunctionDef):
            item.decorator_list, item.returns = [], None
            for argument in [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs]:
                argument.annotation = None
            for variadic in filter(None, (item.args.vararg, item.args.kwarg)):
                variadic.annotation = None
    return node


def run(statements: list[Any], path: str, namespace: dict[str, Any]) -> None:
    exec(compile(ast.Module(statements, []), path, "exec"), namespace)


class Theirs:
    """The functions of the other libraries, on padded batches; what they return is cut to the tokens."""

    def __init__(self, wheels: Wheels) -> None:
        functional = wheels.take(
            "verl/utils/torch_functional.py",
            ["masked_sum", "masked_mean", "masked_var", "masked_whiten"],
            {"torch": torch},
        )
        names = ["reinforce_plus_plus", "reinforce_plus_plus_baseline", "grpo", "rloo"]
        self.verl = wheels.take(
            "verl/trainer/ppo/core_algos.py",
            [f"compute_{name}_outcome_advantage" for name in names]
            + ["kl_penalty", "kl_penalty_forward", "agg_loss", "compute_policy_loss"],
            {"torch": torch, "np": np, "verl_F": functional, "defaultdict": defaultdict},
        )
        utils = wheels.take(
            "openrlhf/models/utils.py",
            ["compute_approx_kl", "compute_reward", "masked_mean"],
            {"torch": torch},
        )
        self.openrlhf = wheels.take(
            "openrlhf/models/loss.py",
            ["aggregate_loss", "PolicyLoss"],
            {"torch": torch, "nn": torch.nn, "masked_mean": utils.masked_mean},
        )
        self.openrlhf_utils = utils
        self.maker = wheels.take(
            "openrlhf/trainer/ppo_utils/experience_maker.py",
            [
                "RemoteExperienceMaker.compute_advantages_and_returns",
                "RemoteExperienceMaker.get_cumulative_returns",
            ],
            {
                "torch": torch,
                "itertools": itertools,
                "compute_reward": utils.compute_reward,
                "apply_length_penalties": lambda *args: None,
            },
        )
        self.nanstd = wheels.take("trl/trainer/utils.py", ["nanstd"], {"torch": torch}).nanstd
        method = "_generate_and_score_completions"
        self.trl = {
            "rloo": wheels.statements(
                "trl/trainer/rloo_trainer.py", method, "grouped_rewards =", "advantages = torch.nan_to_num"
            ),
            "grpo": wheels.statements(
                "trl/trainer/grpo_trainer.py", method, "unscorable_mask =", "advantages = torch.nan_to_num"
            ),
        }

    def advantages(self, name: str, case: dict[str, Any]) -> Tensor:
        library, estimator = name.split("/")
        compute = {"openrlhf": self._openrlhf, "verl": self._verl, "trl": self._trl}[library]
        found = compute(estimator, case)
        return found[padded_mask(case)]

    def _openrlhf(self, estimator: str, case: dict[str, Any]) -> Tensor:
        arguments = SimpleNamespace(
            rollout=SimpleNamespace(n_samples_per_prompt=case["groups"].count(0)),
            reward=SimpleNamespace(clip_range=None),
            algo=SimpleNamespace(
                advantage=SimpleNamespace(estimator=estimator, gamma=1.0, no_std_norm=False)
            ),
        )
        maker = SimpleNamespace(
            strategy=SimpleNamespace(args=arguments),
            advantage_estimator=estimator,
            kl_ctl=SimpleNamespace(value=case["beta"]),
            get_cumulative_returns=lambda *args: self.maker.get_cumulative_returns(None, *args),
        )
        experience = SimpleNamespace(
            index=list(range(len(case["scores"]))),
            rewards=torch.tensor(case["scores"]),
            action_mask=padded_mask(case),
            kl=self.openrlhf_utils.compute_approx_kl(
                padded(case, "logprobs"), padded(case, "ref_logprobs"), kl_estimator="k1"
            ),
            info={},
        )
        (found,) = self.maker.compute_advantages_and_returns(maker, [experience])
        return torch.as_tensor(found.advantages)

    def _verl(self, estimator: str, case: dict[str, Any]) -> Tensor:
        mask = padded_mask(case)
        rewards = torch.zeros(mask.shape)
        rewards[torch.arange(len(mask)), mask.sum(1) - 1] = torch.tensor(case["scores"])
        kl = self.verl.kl_penalty(padded(case, "logprobs"), padded(case, "ref_logprobs"), "k1")
        compute = getattr(self.verl, f"compute_{estimator}_outcome_advantage")
        options: dict[str, Any] = {"config": SimpleNamespace(gamma=1.0)}
        if estimator != "reinforce_plus_plus":
            options["index"] = np.array(case["groups"])
        return torch.as_tensor(compute(rewards - case["beta"] * kl * mask, mask.float(), **options)[0])

    def _trl(self, estimator: str, case: dict[str, Any]) -> Tensor:
        scores = torch.tensor(case["scores"])
        trainer = SimpleNamespace(
            normalize_advantages=False,
            multi_objective_aggregation="sum_then_normalize",
            scale_rewards="group",
            reward_weights=torch.ones(1),
        )
        namespace = {
            "torch": torch,
            "self": trainer,
            "nanstd": self.nanstd,
            "rewards": scores,
            "rewards_per_func": scores[:, None],
            "num_generations": case["groups"].count(0),
            "device": "cpu",
            "mode": "train",
        }
        trainer.num_generations = trainer.num_generations_eval = namespace["num_generations"]
        run(self.trl[estimator], estimator, namespace)
        return torch.as_tensor(namespace["advantages"])[:, None] * padded_mask(case)

    def loss(self, name: str, case: dict[str, Any]) -> tuple[Tensor, Tensor]:
        library, kind = name.split("/")
        logprobs = padded(case, "new_logprobs").requires_grad_()
        old, advantages, mask = padded(case, "old_logprobs"), padded(case, "advantages"), padded_mask(case)
        if library == "openrlhf":
            policy_loss = self.openrlhf.PolicyLoss(
                case["clip"],
                case["clip"],
                dual_clip=3.0 if kind == "dual_clip" else None,
                token_level_loss=kind != "sequence",
            )
            value = policy_loss(logprobs, old, advantages, mask)[0]
        else:
            value = self.verl.compute_policy_loss(
                old,
                logprobs,
                advantages,
                mask.float(),
                cliprange=case["clip"],
                clip_ratio_c=3.0 if kind == "dual_clip" else 1e9,
                loss_agg_mode="token-mean" if kind == "dual_clip" else kind,
            )[0]
        value.backward()
        assert logprobs.grad is not None
        return value.detach(), logprobs.grad[mask]

    def kl(self, name: str, case: dict[str, Any]) -> Tensor:
        library, kind = name.split("/")
        new, ref = torch.tensor(case["new_logprobs"]), torch.tensor(case["ref_logprobs"])
        if library == "openrlhf":
            return torch.as_tensor(self.openrlhf_utils.compute_approx_kl(new, ref, kl_estimator=kind))
        return torch.as_tensor(self.verl.kl_penalty(new, ref, kind))


def padded_mask(case: dict[str, Any]) -> Tensor:
    lengths = torch.tensor(case["lengths"])
    return torch.arange(int(lengths.max()))[None] < lengths[:, None]


def padded(case: dict[str, Any], key: str) -> Tensor:
    """[actions, longest]; what stands in the padding must not matter."""
    parts = torch.tensor(case[key]).split(case["lengths"])
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=-7.0)


def make_case(rng: random.Random, longest: int) -> dict[str, Any]:
    """Groups of equal size, ragged lengths; scores of 0 to 1 or, every other time, 0 to 10."""
    num_groups, size, scale = rng.randint(1, 4), rng.randint(2, 4), rng.choice([0.1, 1.0])
    groups = [group for group in range(num_groups) for _ in range(size)]
    lengths = [rng.randint(1, longest) for _ in groups]
    num_tokens = sum(lengths)

    def floats(low: float, high: float) -> list[float]:
        return [round(rng.uniform(low, high), 4) for _ in range(num_tokens)]

    old = floats(-3, 0)
    return {
        "scores": [round(rng.randint(0, 100) / 10 * scale, 4) for _ in groups],
        "groups": groups,
        "lengths": lengths,
        "beta": rng.choice([0.0, 0.01, 0.3]),
        "logprobs": old,
        "ref_logprobs": floats(-3, 0),
        "old_logprobs": old,
        "new_logprobs": [round(x + rng.gauss(0, 0.7), 4) for x in old],
        "advantages": [round(rng.gauss(0, 1), 4) for _ in range(num_tokens)],
        "clip": rng.choice([0.1, 0.2]),
    }


def answers(theirs: Theirs, case: dict[str, Any]) -> dict[str, Any]:
    """What the other libraries say about one batch."""
    comparable = [
        name
        for name in parity.ADVANTAGES
        if case["beta"] == 0 or name.startswith("openrlhf/") or name == "verl/reinforce_plus_plus"
    ]
    losses = {name: theirs.loss(name, case) for name in parity.LOSSES}
    kinds = [f"{library}/{kind}" for library in ("openrlhf", "verl") for kind in ("k1", "k3")]
    return {
        "advantages": {name: theirs.advantages(name, case).tolist() for name in comparable},
        "losses": {name: {"loss": v.item(), "grad": g.tolist()} for name, (v, g) in losses.items()},
        "kl": {name: theirs.kl(name, case).tolist() for name in kinds},
    }


def differences(case: dict[str, Any], expected: dict[str, Any]) -> dict[str, float]:
    """The largest difference of each comparison to ours."""
    found = {}
    for name, values in expected["advantages"].items():
        found[f"advantages {name}"] = parity.difference(parity.advantages(name, case), values)
    for name, values in expected["losses"].items():
        value, grad = parity.loss(name, case)
        found[f"loss {name}"] = max(
            parity.difference(value, values["loss"]), parity.difference(grad, values["grad"])
        )
    for name, values in expected["kl"].items():
        found[f"kl {name}"] = parity.difference(parity.kl(name, case), values)
    return found


def main(folder: str) -> None:
    wheels = Wheels(Path(folder))
    theirs = Theirs(wheels)
    rng = random.Random(0)
    most: dict[str, float] = defaultdict(float)
    kept = []
    for k in range(NUM_BATCHES):
        case = make_case(rng, longest=6 if k < NUM_KEPT else 40)
        case["beta"] = [0.0, 0.01][k % 2] if k < NUM_KEPT else case["beta"]
        expected = answers(theirs, case)
        for name, value in differences(case, expected).items():
            most[name] = max(most[name], value)
        if k < NUM_KEPT:
            kept.append({"case": case, "expected": expected})
    GOLDEN.write_text(json.dumps({"made_with": wheels.names, "batches": kept}) + "\n")
    for name, value in sorted(most.items()):
        print(f"{name:45s} {value:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])

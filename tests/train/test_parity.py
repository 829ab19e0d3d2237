"""Ours against OpenRLHF, verl and TRL: tensors that `make_golden.py` made with their published functions."""

from __future__ import annotations

import json
from typing import Any

import parity
import pytest
from make_golden import GOLDEN

GOLDEN_FILE = json.loads(GOLDEN.read_text())
BATCHES: list[dict[str, Any]] = GOLDEN_FILE["batches"]


def expected(kind: str, name: str) -> list[tuple[dict[str, Any], Any]]:
    return [(b["case"], b["expected"][kind][name]) for b in BATCHES if name in b["expected"][kind]]


def test_golden_tensors_are_of_the_named_versions() -> None:
    made_with = " ".join(GOLDEN_FILE["made_with"])
    assert all(name in made_with for name in ("openrlhf-0.11.2", "verl-0.9.1", "trl-1.16.0"))


@pytest.mark.parametrize("name", parity.ADVANTAGES)
def test_advantages_agree(name: str) -> None:
    pairs = expected("advantages", name)
    assert len(pairs) >= 2
    for case, theirs in pairs:
        assert any(value != 0 for value in theirs)
        assert parity.difference(parity.advantages(name, case), theirs) < parity.TOLERANCE


@pytest.mark.parametrize("name", parity.LOSSES)
def test_losses_and_their_gradients_agree(name: str) -> None:
    for case, theirs in expected("losses", name):
        value, gradient = parity.loss(name, case)
        assert parity.difference(value, theirs["loss"]) < parity.TOLERANCE
        assert parity.difference(gradient, theirs["grad"]) < parity.TOLERANCE


@pytest.mark.parametrize("name", ["openrlhf/k1", "openrlhf/k3", "verl/k1", "verl/k3"])
def test_estimates_of_the_kl_agree(name: str) -> None:
    for case, theirs in expected("kl", name):
        assert parity.difference(parity.kl(name, case), theirs) < parity.TOLERANCE


def test_the_differences_that_are_named_are_real() -> None:
    """Without its switch each difference shows, so that the comparisons above can fail."""
    shown = {"variance": 0.0, "dual clip": 0.0, "epsilon": 0.0}
    for case, theirs in ((b["case"], b["expected"]) for b in BATCHES):
        verl, dual = (
            theirs["advantages"]["verl/reinforce_plus_plus"],
            theirs["losses"]["verl/dual_clip"]["loss"],
        )
        variance = parity.difference(parity.advantages("openrlhf/reinforce", case), verl)
        shown["variance"] = max(shown["variance"], variance)
        plain = parity.difference(parity.loss("verl/token-mean", case)[0], dual)
        shown["dual clip"] = max(shown["dual clip"], plain)
        if trl := theirs["advantages"].get("trl/grpo"):
            epsilon = parity.difference(parity.advantages("verl/grpo", case), trl)
            shown["epsilon"] = max(shown["epsilon"], epsilon)
    assert min(shown.values()) > 5 * parity.TOLERANCE, shown

from __future__ import annotations

import json

import pytest
import torch
from tensordict import TensorDict

from mappa_train.credit_log import ActionCredit, action_credits
from mappa_train.types import Action, Generation, SampleCredit


def sample(index: int, turn: int, ret: float | None, length: int) -> SampleCredit:
    generation = Generation(
        token_ids=torch.arange(length), logprobs=torch.zeros(length), truncated=False, policy_version=0
    )
    action = Action(agent=f"a_{turn}", turn=turn, prompt_ids=torch.arange(2), generation=generation)
    return SampleCredit(action=action, task_id="t", task_type="k", episode_index=index, ret=ret)


def test_each_action_gets_the_means_over_its_own_tokens() -> None:
    samples = [sample(7, 0, 0.5, 2), sample(7, 1, None, 4), sample(3, 1, 0.25, 3)]
    pack = TensorDict(
        members=torch.tensor([0, 2]),
        lengths=torch.tensor([2, 3]),
        advantages=torch.tensor([1.0, 3.0, -1.0, -2.0, -6.0]),
        old_logprobs=torch.tensor([-1.0, -2.0, -1.0, -1.0, -1.0]),
        ref_logprobs=torch.tensor([-1.5, -2.5, -1.0, -1.0, -4.0]),
    )
    found = action_credits([pack], samples)
    assert found == (
        ActionCredit(index=3, turn=1, agent="a_1", ret=0.25, advantage=-3.0, kl=1.0, num_tokens=3),
        ActionCredit(index=7, turn=0, agent="a_0", ret=0.5, advantage=2.0, kl=0.5, num_tokens=2),
    )


def test_a_line_is_read_back_as_it_was() -> None:
    item = ActionCredit(index=3, turn=1, agent="a_1", ret=1 / 3, advantage=-3e-9, kl=1.0, num_tokens=3)
    line = item.to_json(12)
    assert ActionCredit.from_json(line) == item
    assert list(json.loads(line)) == ["step", "index", "turn", "agent", "return", "advantage", "kl", "tokens"]
    assert json.loads(line)["step"] == 12


@pytest.mark.parametrize("line", ["", "[]", "3", "{}", '{"index": []}', '{"index": "x"}'])
def test_what_is_no_credit_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"credit|Expecting|invalid literal|int\(\)"):
        ActionCredit.from_json(line)

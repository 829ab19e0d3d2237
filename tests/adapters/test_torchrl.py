"""A team as a TorchRL environment, and what TorchRL's own PettingZoo wrapper makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toy_team import TASKS, TEAM, ToyEnv, judge, make_toy

import mappa_envs
from mappa_envs.errors import SandboxError
from mappa_envs.spaces import FreeText
from mappa_envs.testing import FakeCoach, FakeSandbox
from mappa_envs.types import ToolResult

torchrl = pytest.importorskip("torchrl", reason="the adapter needs torchrl")

import torch  # noqa: E402
from torchrl.collectors.llm import LLMCollector  # noqa: E402
from torchrl.data import LazyStackStorage, NonTensor, ReplayBuffer  # noqa: E402
from torchrl.envs import AsyncEnvPool, PettingZooWrapper, SerialEnv  # noqa: E402
from torchrl.envs.libs import gym as torchrl_gym  # noqa: E402
from torchrl.envs.utils import check_env_specs  # noqa: E402

from mappa_envs.adapters.torchrl import TeamEnv, TeamPolicy, by_agent  # noqa: E402

AGENTS = [role.name for role in TEAM]
POLICIES = {
    "first_0": lambda agent, messages: "good",
    "second_0": lambda agent, messages: "fair",
    "third_0": lambda agent, messages: "blame",
}


def make_team() -> TeamEnv:
    return TeamEnv(make_toy())


def texts(data: Any, key: Any) -> list[str]:
    return [item.data for item in data.get(key).reshape(-1).unbind(0)]


@pytest.mark.parametrize("env_id", mappa_envs.list_envs())
@pytest.mark.parametrize("break_when_any_done", [True, False])
def test_check_env_specs(env_id: str, break_when_any_done: bool) -> None:
    env = TeamEnv(mappa_envs.make(env_id, sandbox=FakeSandbox(), coach=FakeCoach()))
    check_env_specs(env, seed=0, break_when_any_done=break_when_any_done)
    env.close()


def test_a_rollout_is_one_turn_a_step() -> None:
    env = make_team()
    env.set_seed(0)
    rollout = env.rollout(10, TeamPolicy(POLICIES))
    assert rollout.shape == (1, 3)
    assert texts(rollout, "agent") == AGENTS
    assert rollout["agent_index"].tolist() == [[0, 1, 2]]
    assert texts(rollout, ("text", "response")) == ["good", "fair", "blame"]
    assert "first_0: good" in texts(rollout, ("text", "prompt"))[1]
    assert rollout["next", "reward"].flatten().tolist() == pytest.approx([0.8, 0.4, 0.4])
    assert rollout["next", "done"].flatten().tolist() == [False, False, True]
    assert rollout["next", "terminated"].flatten().tolist() == [False, False, True]
    assert not rollout["next", "truncated"].any()
    assert rollout["next", "scored"].all()
    assert rollout["next", "outcome"].isnan().flatten().tolist() == [True, True, False]
    assert rollout["next", "outcome"][0, -1].item() == 0.0
    assert texts(rollout, ("next", "stop_reason")) == ["", "", "done"]


def test_by_agent_has_final_rewards() -> None:
    env = make_team()
    rollout = env.rollout(10, TeamPolicy(POLICIES))
    groups = by_agent(rollout)
    assert rollout["next", "reward"][0, 0].item() == pytest.approx(0.8)
    assert list(groups) == AGENTS
    rewards = {agent: group["next", "reward"].flatten().tolist() for agent, group in groups.items()}
    assert rewards == {
        "first_0": [pytest.approx(0.2)],
        "second_0": [pytest.approx(0.4)],
        "third_0": [pytest.approx(0.4)],
    }
    final = [(turn.final_score or 0) / 10 for turn in env.aec.episode.turns]
    assert [rewards[agent][0] for agent in AGENTS] == pytest.approx(final)


@pytest.mark.parametrize("scoring", ["deferred", "hindsight"])
def test_by_agent_has_scores_that_came_at_the_end(scoring: str) -> None:
    env = TeamEnv(make_toy(scoring=scoring))
    rollout = env.rollout(10, TeamPolicy(POLICIES))
    assert rollout["next", "reward"].flatten().tolist() == [0.0, 0.0, pytest.approx(0.4)]
    assert rollout["next", "scored"].flatten().tolist() == [False, False, True]
    groups = by_agent(rollout)
    assert all(group["next", "scored"].all() for group in groups.values())
    final = [(turn.final_score or 0) / 10 for turn in env.aec.episode.turns]
    assert [groups[agent]["next", "reward"].item() for agent in AGENTS] == pytest.approx(final)


def test_by_agent_wants_whole_episodes() -> None:
    rollout = make_team().rollout(10, TeamPolicy(POLICIES))
    with pytest.raises(ValueError, match="the last 2 turns are of an episode that goes on"):
        by_agent(rollout[:, :2])
    with pytest.raises(ValueError, match="the first turns of an episode are missing"):
        by_agent(rollout[:, 1:])


def test_by_agent_leaves_out_what_a_fault_of_the_sandbox_ended() -> None:
    runs = iter([ToolResult(), SandboxError("the worker is gone")])

    def script(blocks: Any, files: Any) -> ToolResult:
        found = next(runs, ToolResult())
        if isinstance(found, SandboxError):
            raise found
        return found

    env = TeamEnv(make_toy(sandbox=FakeSandbox(script=script)))
    rollout = env.rollout(
        5, TeamPolicy(lambda agent, messages: "```python\n1\n```"), break_when_any_done=False
    )
    assert texts(rollout, ("next", "stop_reason")) == ["", "infra", "", "", "done"]
    assert rollout["next", "scored"].flatten().tolist() == [True, False, True, True, True]
    assert {agent: len(group) for agent, group in by_agent(rollout).items()} == dict.fromkeys(AGENTS, 1)


def test_a_correction_scores_a_turn_that_had_no_score() -> None:
    env = TeamEnv(make_toy(coach=FakeCoach(judge, fail_on=[0])))
    rollout = env.rollout(10, TeamPolicy(POLICIES))
    assert rollout["next", "scored"].flatten().tolist() == [False, True, True]
    first = by_agent(rollout)["first_0"]
    assert first["next", "scored"].all()
    assert first["next", "reward"].item() == pytest.approx(0.2)


def test_cuts_and_unscored_actions() -> None:
    env = TeamEnv(make_toy(coach=None, max_turns=2))
    rollout = env.rollout(10, TeamPolicy(POLICIES))
    assert rollout["next", "truncated"].flatten().tolist() == [False, True]
    assert rollout["next", "done"].flatten().tolist() == [False, True]
    assert not rollout["next", "terminated"].any()
    assert not rollout["next", "scored"].any()
    assert not rollout["next", "reward"].any()


def test_a_seed_fixes_the_sequence_of_tasks() -> None:
    env = make_team()
    runs = []
    for _ in range(2):
        env.set_seed(3)
        runs.append([texts(env.reset(), ("text", "prompt"))[0] for _ in range(8)])
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == 2
    for task in ("red", "blue"):
        first = env.reset(options={"task_id": task})
        assert f"Say {task}." in texts(first, ("text", "prompt"))[0]


@pytest.mark.filterwarnings("ignore:The env passed to LLMCollector")
def test_llm_collector_yields_whole_episodes() -> None:
    collector = LLMCollector(
        make_team(),
        policy=TeamPolicy(POLICIES),
        dialog_turns_per_batch=6,
        total_dialog_turns=12,
        yield_completed_trajectories=True,
    )
    batches = list(collector)
    assert [texts(batch, "agent") for batch in batches] == [AGENTS * 2] * 2
    assert {agent: group.shape for agent, group in by_agent(batches[0]).items()} == dict.fromkeys(
        AGENTS, torch.Size([2])
    )


@pytest.mark.filterwarnings("ignore:The env passed to LLMCollector")
def test_llm_collector_fills_a_replay_buffer() -> None:
    buffer = ReplayBuffer(storage=LazyStackStorage(20), batch_size=4)
    collector = LLMCollector(
        make_team(),
        policy=TeamPolicy(POLICIES),
        dialog_turns_per_batch=3,
        total_dialog_turns=9,
        replay_buffer=buffer,
    )
    for _ in collector:
        pass
    assert len(buffer) == 9
    assert set(texts(buffer.sample(), ("text", "response"))) <= {"good", "fair", "blame"}


@pytest.mark.filterwarnings("ignore:The env passed to LLMCollector")
def test_episodes_at_a_time_in_threads() -> None:
    pool = AsyncEnvPool([make_team, make_team], backend="threading")
    collector = LLMCollector(
        pool,
        policy=TeamPolicy(POLICIES),
        dialog_turns_per_batch=2,
        total_dialog_turns=12,
        yield_completed_trajectories=True,
    )
    episodes = list(collector)
    pool.close()
    assert [texts(episode, "agent") for episode in episodes] == [AGENTS] * 4


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_torchrls_own_language_model_wrapper_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers", reason="the wrapper needs transformers")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "train")
    from tiny import WORDS, make_model
    from torchrl.modules.llm import TransformersWrapper

    make_model(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path, pad_token="<unk>")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    settings = {"max_new_tokens": 3, "top_k": len(WORDS)}
    policy = TransformersWrapper(model, tokenizer=tokenizer, input_mode="text", generate_kwargs=settings)
    collector = LLMCollector(
        make_team(),
        policy=policy,
        dialog_turns_per_batch=3,
        total_dialog_turns=3,
        yield_completed_trajectories=True,
    )
    (batch,) = collector
    assert texts(batch, "agent") == AGENTS
    said = texts(batch, ("text", "response"))
    assert all(said)
    assert f"first_0: {said[0]}" in texts(batch, ("text", "prompt"))[1]
    assert {agent: group.shape[0] for agent, group in by_agent(batch).items()} == dict.fromkeys(AGENTS, 1)


def test_serial_environments() -> None:
    env = SerialEnv(2, make_team)
    rollout = env.rollout(3, TeamPolicy(POLICIES))
    env.close()
    assert rollout.shape == (2, 1, 3)
    assert {agent: group.shape for agent, group in by_agent(rollout).items()} == dict.fromkeys(
        AGENTS, torch.Size([2])
    )


def test_coroutine_policies() -> None:
    async def later(agent: str, messages: list[dict[str, str]]) -> str:
        return messages[0]["content"][:3]

    assert texts(make_team().rollout(10, TeamPolicy(later)), ("text", "response")) == ["Say"] * 3


def test_close_closes_the_sandbox_that_the_environment_opened() -> None:
    sandbox = FakeSandbox()
    env = TeamEnv(make_toy(sandbox=sandbox))
    env.reset()
    env.close()
    assert [workspace.closed for workspace in sandbox.workspaces] == [True]


class WithoutInfos(ToyEnv):
    """Says nothing in `infos`, not even the messages."""

    def _update_infos(self, step: Any) -> None:
        self.infos = {agent: {} for agent in self.agents}


@pytest.fixture
def text_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """TorchRL has no counterpart of our text space until one is registered, for this test only."""
    registry = torchrl_gym._ConversionRegistry(torchrl_gym._conversion_registry.data)
    registry[FreeText] = lambda spec, **options: NonTensor((), example_data="")
    monkeypatch.setattr(torchrl_gym, "_conversion_registry", registry)


@pytest.mark.filterwarnings("ignore")
def test_torchrls_own_wrapper_does_not_know_text_spaces() -> None:
    with pytest.raises(KeyError, match="No conversion tool"):
        PettingZooWrapper(make_toy(), use_mask=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("text_is_known")
def test_torchrls_own_wrapper_takes_only_numbers_in_infos() -> None:
    with pytest.raises(RuntimeError, match="Could not infer dtype of dict"):
        PettingZooWrapper(make_toy(), use_mask=True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("text_is_known")
def test_torchrls_own_wrapper_resets_but_cannot_step_text() -> None:
    env = PettingZooWrapper(WithoutInfos(TEAM, TASKS, coach=None, sandbox=FakeSandbox()), use_mask=True)
    assert sorted(env.group_map) == AGENTS
    first = env.reset()
    assert "Say good." in texts(first, ("first_0", "observation", "prompt"))[0]
    assert [bool(first[agent, "mask"].any()) for agent in AGENTS] == [True, False, False]
    with pytest.raises(NotImplementedError, match="Invalid type of data"):
        env.rollout(1)


@pytest.mark.filterwarnings("ignore")
def test_torchrls_own_wrapper_needs_masks() -> None:
    with pytest.raises(ValueError, match="use_mask=True"):
        PettingZooWrapper(make_toy())

"""The training loop, top to bottom: collect episodes, credit, update, record, checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from mappa_envs.coach.llm.limits import Usage
from mappa_envs.errors import UnavailableError
from mappa_train.checkpoint import Checkpoint, RunFolder, verify_files
from mappa_train.coach_fit import keep_calibration
from mappa_train.coaching import count_earlier, has_budget, keep_spent, out_of_budget, used_by
from mappa_train.config import Config
from mappa_train.credit import returns
from mappa_train.debias import Debias
from mappa_train.learner import AdvantageStats, Learner
from mappa_train.metrics import EventWriter, MetricKeys, step_metrics
from mappa_train.monitors import CoachMonitor
from mappa_train.policies import Policies
from mappa_train.progress import Progress
from mappa_train.report import read_episodes, write_report
from mappa_train.rollout import RolloutTimes, collect, plan_step
from mappa_train.team import Team, load_weights, open_team, save_weights
from mappa_train.types import EpisodeRollout, SampleCredit, UpdateStats

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Loop:
    """What every step needs."""

    config: Config
    run: RunFolder
    team: Team
    learner: Learner
    debias: Debias
    keys: MetricKeys
    monitor: CoachMonitor
    progress: Progress


def train(config: Config, run: RunFolder, progress: Progress, resume: bool = False) -> None:
    """Train a team and leave everything about it in the run folder.

    Raises `UnavailableError` when the coach left more than `max_unscored` of a step's actions unscored;
    whatever was finished is in a checkpoint then, as after an interruption. The step in which the coach's
    budget is spent is the last: learned from as far as it is scored, and in a checkpoint.
    """
    if config.returns == "to_go":
        log.warning("--returns to_go grows with the actions left: a long failure can outrank a short success")
    config = keep_calibration(config, run)
    with closing(open_team(config, num_envs=config.episodes_per_step)) as team:
        loop, done = _begin(config, run, team, progress, resume)
        coach = team.envs[0].coach
        count_earlier(coach, run)
        progress.start(config.steps, loop.keys.agents, first_step=done + 1)
        try:
            if has_budget(coach):
                done = _run_steps(loop, done)
        finally:
            # A step that came to nothing was paid for all the same.
            keep_spent(coach, run)
    if done < config.steps:
        log.warning(
            "the coach's budget of %g USD is spent: the run ends after step %d of %d. To go on, raise "
            "coach_budget_usd in %s and resume",
            config.coach_budget_usd,
            done,
            config.steps,
            run.path / "config.toml",
        )
    lines = run.read_metrics()
    progress.finish(lines[0], lines[-1], run.path)


def _begin(config: Config, run: RunFolder, team: Team, progress: Progress, resume: bool) -> tuple[_Loop, int]:
    """Everything in its state after the newest checkpoint, or at the start; and the number of that step."""
    if run.start_path.is_dir():
        verify_files(run.start_path, "begin the run again")
        load_weights(run.start_path, team.policies)
        team.policies.freeze_reference()
    learner, debias = Learner(team.policies, config), Debias(config.debias)
    done = _restore(run.load(), run, team.policies, learner, debias) if resume else 0
    keys = MetricKeys.of(team.envs[0].possible_agents, team.envs[0].tasks)
    loop = _Loop(
        config=config,
        run=run,
        team=team,
        learner=learner,
        debias=debias,
        keys=keys,
        monitor=CoachMonitor(keys.agents, run.read_metrics(), partial(read_episodes, run.path)),
        progress=progress,
    )
    return loop, done


def _run_steps(loop: _Loop, done: int) -> int:
    """All steps after `done`; returns the last one, which has a checkpoint."""
    config, run, learner = loop.config, loop.run, loop.learner
    saved, seen = done, loop.debias.state()
    with closing(EventWriter(run.events_path, done)) as events:
        try:
            for step in range(done + 1, config.steps + 1):
                line = _step(step, loop)
                keep_spent(loop.team.envs[0].coach, run)
                events.write(line)
                done, seen = step, loop.debias.state()
                is_last = step == config.steps or bool(line["stop/budget"])
                if step % config.checkpoint_every == 0 or is_last:
                    _save(step, loop, seen)
                    saved = step
                write_report(run.path)
                loop.progress.step(line)
                if is_last:
                    break
        finally:
            # In the middle of an update the weights are of no step at all.
            if done > saved and learner.intact and learner.version == done:
                _save(done, loop, seen)
    return done


def _step(step: int, loop: _Loop) -> dict[str, float | int | None]:
    config, team, learner = loop.config, loop.team, loop.learner
    start = time.perf_counter()
    # One seed a step: a resumed run shuffles its minibatches as the uninterrupted one would.
    torch.manual_seed(config.seed * 1_000_003 + step)
    team.engine.sync(learner.version)
    before = used_by(team.envs[0].coach)
    rollouts, times = _rollout(step, config, team, loop.progress)
    loop.run.append_episodes(step, rollouts)
    _check_scored(step, config, rollouts)
    learning = time.perf_counter()
    samples = credit_samples(loop.debias.apply(rollouts), config)
    updates, advantages = learner.update(samples, partial(loop.progress.phase, "learn"))
    learn_s = time.perf_counter() - learning
    after = used_by(team.envs[0].coach)
    used = after - before if before and after else None
    line = _line(step, rollouts, samples, updates, advantages, loop.keys, times, used, learn_s, start)
    line |= loop.monitor.figures(line, [item.episode for item in rollouts])
    loop.run.append_metrics(line)
    return line


def _rollout(
    step: int, config: Config, team: Team, progress: Progress
) -> tuple[list[EpisodeRollout], RolloutTimes]:
    progress.phase("rollout", 0, config.episodes_per_step)
    plans = plan_step(
        step,
        num_episodes=config.episodes_per_step,
        samples_per_task=config.samples_per_task,
        tasks=team.envs[0].tasks,
        team=team.envs[0].possible_agents,
        exploring_starts=config.exploring_starts,
        seed=config.seed,
    )
    return collect(
        plans,
        envs=team.envs,
        engine=team.engine,
        tokenizer=team.tokenizer,
        max_prompt_tokens=team.tokenizer.context_tokens - config.max_new_tokens,
        seed=config.seed,
        step=step,
        on_done=lambda done, total: progress.phase("rollout", done, total),
    )


def credit_samples(rollouts: Sequence[EpisodeRollout], config: Config) -> list[SampleCredit]:
    """Every action of the step with its return; None for what learning leaves out."""
    samples = []
    for rollout in rollouts:
        turns = rollout.episode.turns
        scored = torch.tensor([turn.final_score is not None for turn in turns], dtype=torch.bool)
        rewards = torch.tensor([(turn.final_score or 0.0) / 10 for turn in turns])
        if config.returns == "outcome":
            rewards = torch.full((len(turns),), rollout.episode.outcome or 0.0)
            scored = torch.ones_like(scored)
        values = returns(rewards, scored, config.gamma, config.returns)
        for action in rollout.actions:
            masked = config.truncated == "mask" and action.generation.truncated
            left_out = masked or not bool(scored[action.turn])
            samples.append(
                SampleCredit(
                    action=action,
                    task_id=rollout.episode.task_id,
                    task_type=rollout.episode.task_type,
                    episode_index=rollout.index,
                    ret=None if left_out else float(values[action.turn]),
                )
            )
    return samples


def _check_scored(step: int, config: Config, rollouts: Sequence[EpisodeRollout]) -> None:
    turns = [turn for rollout in rollouts for turn in rollout.episode.turns]
    unscored = [turn for turn in turns if turn.final_score is None]
    if config.returns == "outcome" or any(out_of_budget(rollout.episode) for rollout in rollouts):
        return
    if len(unscored) > config.max_unscored * len(turns):
        why = unscored[0].unscored_reason
        go_on = "resume" if step > 1 else "start again: no step was finished, so there is nothing to resume"
        raise UnavailableError(
            f"step {step}: the coach left {len(unscored)} of {len(turns)} actions unscored, more than "
            f"--max-unscored {config.max_unscored:g} allows. The first: {why}. Mend the coach, then {go_on}"
        )


def _line(
    step: int,
    rollouts: Sequence[EpisodeRollout],
    samples: Sequence[SampleCredit],
    updates: dict[str, UpdateStats],
    advantages: AdvantageStats,
    keys: MetricKeys,
    times: RolloutTimes,
    coach_used: Usage | None,
    learn_s: float,
    start: float,
) -> dict[str, float | int | None]:
    known = [sample.ret for sample in samples if sample.ret is not None]
    return step_metrics(
        step,
        rollouts,
        updates,
        keys=keys,
        return_mean=sum(known) / len(known) if known else None,
        adv_mean=advantages.mean,
        adv_std=advantages.std,
        timings={"rollout": times.rollout, "learn": learn_s, "sync": 0.0},
        time_s=time.perf_counter() - start,
        coach_used=coach_used,
    )


def _save(step: int, loop: _Loop, seen: dict[str, Any] | None) -> None:
    state = {"learner": loop.learner.state(), "rng": torch.get_rng_state(), "cursor": step, "debias": seen}
    save_weights(loop.run, step, loop.team.policies, state)


def _restore(
    checkpoint: Checkpoint, run: RunFolder, policies: Policies, learner: Learner, debias: Debias
) -> int:
    load_weights(checkpoint.folder, policies)
    learner.load_state(checkpoint.state["learner"])
    debias.load_state(checkpoint.state.get("debias"))
    torch.set_rng_state(checkpoint.state["rng"])
    run.truncate(checkpoint.step)
    return checkpoint.step

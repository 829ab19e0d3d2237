"""The training loop, top to bottom: collect episodes, credit, update, record, checkpoint."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from mappa_envs.coach.llm.limits import Usage
from mappa_envs.errors import UnavailableError
from mappa_train.checkpoint import Checkpoint, RunFolder
from mappa_train.cluster.session import rollout_workers
from mappa_train.coach_fit import keep_calibration
from mappa_train.coaching import (
    count_earlier,
    divided,
    has_budget,
    keep_spent,
    out_of_budget,
    share_of_budget,
    used_by,
    used_since,
)
from mappa_train.config import Config
from mappa_train.credit import returns
from mappa_train.debias import Debias
from mappa_train.distributed import ALONE, UNHURRIED, Ranks
from mappa_train.evaluate import measure
from mappa_train.interrupts import finish_first
from mappa_train.keeping import tidy
from mappa_train.learner import Learner
from mappa_train.manifest import verify_files
from mappa_train.metrics import EventWriter, MetricKeys, MetricLine, evaluation_metrics, step_metrics
from mappa_train.monitors import CoachMonitor
from mappa_train.players import OwnTeam, Players, RolloutWorkers
from mappa_train.policies import pick_device
from mappa_train.progress import Progress, opening
from mappa_train.report import read_episodes, write_report
from mappa_train.rollout import RolloutTimes, plans_of
from mappa_train.router import frozen_names
from mappa_train.run_log import log_start, log_step
from mappa_train.team import Team, load_weights, open_team, save_weights
from mappa_train.types import EpisodeRollout, SampleCredit, UpdateStats
from mappa_train.update_stats import AdvantageStats
from mappa_train.wandb_writer import WandbWriter

if TYPE_CHECKING:
    from mappa_train.cluster.pool import WorkerPool

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
    players: Players
    ranks: Ranks


def train(
    config: Config, run: RunFolder, progress: Progress, resume: bool = False, ranks: Ranks = ALONE
) -> None:
    """Train a team and leave everything about it in the run folder.

    Each of several ranks calls this, and the first one writes. All have the episodes of all and decide by
    them, so that they decide alike.

    Raises `UnavailableError` when the coach left more than `max_unscored` of a step's actions unscored;
    whatever was finished is in a checkpoint then, as after an interruption. The step in which the coach's
    budget is spent is the last: learned from as far as it is scored, and in a checkpoint.
    """
    if config.returns == "to_go":
        log.warning("--returns to_go grows with the actions left: a long failure can outrank a short success")
    config = ranks.share(lambda: keep_calibration(config, run))
    plays = not config.num_rollout_workers
    with (
        closing(open_team(divided(config, ranks.size if plays else 1), plays=plays)) as team,
        rollout_workers(config, team, progress.say) if ranks.is_first else nullcontext() as pool,
    ):
        ranks.meet("the start", None if plays else UNHURRIED)
        loop, done = _begin(config, run, team, progress, pool, resume, ranks)
        coach = team.env.coach
        count_earlier(coach, run)
        if ranks.is_first:
            log_start(config, run, loop.keys.agents, str(pick_device()), done)
        progress.say(opening(run.path, config.model, str(pick_device())))
        progress.start(config.steps, loop.keys.agents, first_step=done + 1)
        try:
            if has_budget(coach):
                done = _run_steps(loop, done)
        finally:
            # A step that came to nothing was paid for all the same.
            if ranks.is_first:
                keep_spent(coach, run)
    if ranks.is_first:
        _finish(config, run, progress, done)


def _finish(config: Config, run: RunFolder, progress: Progress, done: int) -> None:
    """Say how the run ended, after the step `done`; raise `UnavailableError` if there was none."""
    lines = run.read_metrics()
    if not lines:
        raise UnavailableError(
            f"--coach-budget-usd {config.coach_budget_usd:g}: trying out the coach has spent it; give more, "
            "and begin again"
        )
    if done < config.steps:
        log.warning(
            "the coach's budget of %g USD is spent: the run ends after step %d of %d. To go on, raise "
            "coach_budget_usd in %s and resume",
            config.coach_budget_usd,
            done,
            config.steps,
            run.path / "config.toml",
        )
    progress.finish(lines[0], lines[-1], run.path)


def _begin(
    config: Config,
    run: RunFolder,
    team: Team,
    progress: Progress,
    pool: WorkerPool | None,
    resume: bool,
    ranks: Ranks,
) -> tuple[_Loop, int]:
    """Everything in its state after the newest checkpoint, or at the start; and the number of that step."""
    if config.init or run.start_path.is_dir():
        verify_files(run.start_path, "begin the run again")
        load_weights(run.start_path, team.policies)
        team.policies.freeze_reference()
    checkpoint = run.load() if resume else None
    if checkpoint is not None:
        load_weights(checkpoint.folder, team.policies)
    learner, debias = Learner(team.policies, config, ranks), Debias(config.debias)
    players: Players = OwnTeam(config, team, ranks)
    if config.num_rollout_workers:
        players = RolloutWorkers(config, team.policies, pool, ranks)
    if checkpoint is not None:
        _restore(checkpoint, learner, debias)
        if ranks.is_first:
            run.truncate(checkpoint.step)
        ranks.meet("the restart from the checkpoint")
    keys = MetricKeys.of(team.env.possible_agents, team.env.tasks, team.env.figures([]))
    loop = _Loop(
        config=config,
        run=run,
        team=team,
        learner=learner,
        debias=debias,
        keys=keys,
        monitor=CoachMonitor(keys.agents, run.read_metrics(), partial(read_episodes, run.path)),
        progress=progress,
        players=players,
        ranks=ranks,
    )
    return loop, checkpoint.step if checkpoint is not None else 0


def _run_steps(loop: _Loop, done: int) -> int:
    """All steps after `done`; returns the last one, which has a checkpoint."""
    config, learner, ranks = loop.config, loop.learner, loop.ranks
    seen = loop.debias.state()
    with ExitStack() as stack:
        writers = _open_writers(loop, done, stack)
        try:
            for step in range(done + 1, config.steps + 1):
                with ExitStack() as update:
                    line = _step(step, loop, update)
                    if ranks.is_first:
                        _record(line, loop, writers)
                    done, seen = step, loop.debias.state()
                is_last = _is_last(line, config)
                if step % config.checkpoint_every == 0 or is_last or line["eval/num_episodes"]:
                    _save(step, loop, seen)
                if ranks.is_first:
                    write_report(loop.run.path)
                loop.progress.step(line)
                if is_last:
                    break
        finally:
            # In the middle of an update the weights are of no step at all. Several ranks are not in the same
            # place when they are interrupted, and go back to the last checkpoint.
            is_whole = learner.intact and learner.version == done and ranks.size == 1
            if is_whole and done > (loop.run.latest() or 0):
                _save(done, loop, seen)
    return done


def _is_last(line: MetricLine, config: Config) -> bool:
    """Whether the run ends with this step: as planned, or with the coach's budget."""
    return line["step"] == config.steps or line["coach/budget_spent"] is not None


def _open_writers(loop: _Loop, done: int, stack: ExitStack) -> list[EventWriter | WandbWriter]:
    """Who gets each line of figures besides metrics.jsonl; closed with the stack."""
    if not loop.ranks.is_first:
        return []
    writers: list[EventWriter | WandbWriter] = [EventWriter(loop.run.events_path, done)]
    if loop.config.wandb:
        writers.append(WandbWriter(loop.config, loop.run))
    return [stack.enter_context(closing(writer)) for writer in writers]


def _record(line: MetricLine, loop: _Loop, writers: Sequence[EventWriter | WandbWriter]) -> None:
    loop.run.append_metrics(line)
    keep_spent(loop.team.env.coach, loop.run)
    for writer in writers:
        writer.write(line)
    log_step(line, loop.config.steps)


def _step(step: int, loop: _Loop, update: ExitStack) -> dict[str, float | int | None]:
    """Play, learn and measure; `update` is entered with what is to hold until the step is recorded."""
    config, learner, ranks, coach = loop.config, loop.learner, loop.ranks, loop.team.env.coach
    start = time.perf_counter()
    before = used_by(coach)
    # The workers' requests all come to the first rank's coach.
    with share_of_budget(coach, 1 if config.num_rollout_workers else ranks.size):
        rollouts, times, own = _rollout(step, loop)
    if ranks.is_first:
        loop.run.append_episodes(step, rollouts)
    _check_scored(step, config, rollouts)
    learning = time.perf_counter()
    samples = credit_samples(loop.debias.apply(rollouts), config)
    _warn_of_nothing(step, samples, frozen_names(config))
    mine = [sample for sample in samples if sample.episode_index in own]
    if ranks.size == 1 and step - 1 > (loop.run.latest() or 0):
        # The weights are all that is left of the finished steps, and of no step at all during an update.
        update.enter_context(
            finish_first(
                f"interrupted: step {step} is finished first, since those before it have no checkpoint; "
                "interrupt again to give them up"
            )
        )
    # One seed a step: a resumed run shuffles its minibatches as the uninterrupted one would. Only now, since
    # some engines draw from the same numbers.
    torch.manual_seed(config.seed * 1_000_003 + step)
    updates, advantages = learner.update(mine, partial(loop.progress.phase, "learn"))
    if ranks.is_first:
        loop.run.append_credit(step, advantages.actions)
    learn_s = time.perf_counter() - learning
    used = used_since(coach, before, ranks)
    line = _line(step, rollouts, samples, updates, advantages, loop, times, used, learn_s, start)
    line |= loop.monitor.figures(line, [item.episode for item in rollouts])
    return line | _held_out(step, loop, is_last=_is_last(line, config))


def _rollout(step: int, loop: _Loop) -> tuple[list[EpisodeRollout], RolloutTimes, frozenset[int]]:
    """The step's episodes, and the indices of those that this rank learns from."""
    config, version = loop.config, loop.learner.version
    loop.progress.phase("rollout", 0, config.episodes_per_step)
    start = time.perf_counter()
    loop.players.sync(version)
    sync_s = time.perf_counter() - start
    plans = plans_of(step, config, loop.team.env)
    rollouts, times, mine = loop.players.play(plans, step, partial(loop.progress.phase, "rollout"))
    return rollouts, replace(times, sync=sync_s), mine


def _held_out(step: int, loop: _Loop, *, is_last: bool) -> MetricLine:
    """The figures of the val tasks, where the step is one of those after which they are measured."""
    config, env = loop.config, loop.team.held_out
    if env is None or (step % config.eval_every and not is_last):
        return evaluation_metrics(None, loop.keys)
    start = time.perf_counter()
    loop.players.sync(loop.learner.version)
    line: MetricLine = {}
    if loop.ranks.is_first:  # the others could only repeat it
        play = partial(loop.players.measure, on_done=partial(loop.progress.phase, "eval"))
        result = measure(config, env, episodes=config.eval_episodes, play=play)
        line = evaluation_metrics(result.table.overall, loop.keys, time.perf_counter() - start)
    loop.ranks.meet("the end of the evaluation", UNHURRIED)
    return loop.ranks.share(lambda: line)


def credit_samples(rollouts: Sequence[EpisodeRollout], config: Config) -> list[SampleCredit]:
    """Every action of the step with its return; None for what learning leaves out."""
    samples, frozen = [], frozen_names(config)
    for rollout in rollouts:
        turns = rollout.episode.turns
        scored = torch.tensor([turn.final_score is not None for turn in turns], dtype=torch.bool)
        rewards = torch.tensor([(turn.final_score or 0.0) / 10 for turn in turns])
        if config.returns == "outcome":
            rewards = torch.full((len(turns),), rollout.episode.outcome or 0.0)
            scored = torch.full_like(scored, rollout.episode.outcome is not None)
        values = returns(rewards, scored, config.gamma, config.returns)
        for action in rollout.actions:
            masked = config.truncated == "mask" and action.generation.truncated
            left_out = masked or action.agent in frozen or not bool(scored[action.turn])
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
    if not turns:
        log.warning(
            "step %d: no episode came to an action, and nothing can be learned (they ended by: %s). If it is "
            "the context: lower max_new_tokens (%d), or take a model with a longer one",
            step,
            ", ".join(sorted({str(rollout.episode.stop_reason) for rollout in rollouts})),
            config.max_new_tokens,
        )
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


def _warn_of_nothing(step: int, samples: Sequence[SampleCredit], frozen: Sequence[str] = ()) -> None:
    """Say so where there were actions, and all are left out of learning."""
    if samples and all(sample.ret is None for sample in samples):
        cut = sum(sample.action.generation.truncated for sample in samples)
        log.warning(
            "step %d: nothing is learned: all %d actions are unscored or masked%s; %d were cut by the length "
            "limit (max_new_tokens)",
            step,
            len(samples),
            ", or of frozen agents" if frozen else "",
            cut,
        )


def _line(
    step: int,
    rollouts: Sequence[EpisodeRollout],
    samples: Sequence[SampleCredit],
    updates: dict[str, UpdateStats],
    advantages: AdvantageStats,
    loop: _Loop,
    times: RolloutTimes,
    coach_used: Usage | None,
    learn_s: float,
    start: float,
) -> dict[str, float | int | None]:
    known = [sample.ret for sample in samples if sample.ret is not None]
    # Spent to the last cent, it leaves no score missing yet, and all of the next step's.
    is_spent = any(out_of_budget(item.episode) for item in rollouts) or not has_budget(loop.team.env.coach)
    return step_metrics(
        step,
        rollouts,
        updates,
        keys=loop.keys,
        return_mean=sum(known) / len(known) if known else None,
        adv_mean=advantages.mean,
        adv_std=advantages.std,
        timings={"rollout": times.rollout, "learn": learn_s, "sync": times.sync},
        time_s=time.perf_counter() - start,
        coach_used=coach_used,
        budget_spent=loop.config.coach_budget_usd if is_spent else None,
    )


def _save(step: int, loop: _Loop, seen: dict[str, Any] | None) -> None:
    state = {"learner": loop.learner.state(), "rng": torch.get_rng_state(), "debias": seen}
    if not loop.ranks.is_first:
        for policy in loop.team.policies.policy_of.values():  # the first rank has a part of the weights only
            loop.team.policies.state(policy)
        return
    save_weights(loop.run, step, loop.team.policies, state)
    tidy(loop.run, loop.config.keep_checkpoints)


def _restore(checkpoint: Checkpoint, learner: Learner, debias: Debias) -> None:
    learner.load_state(checkpoint.state["learner"])
    debias.load_state(checkpoint.state.get("debias"))
    torch.set_rng_state(checkpoint.state["rng"])

"""The curves of a run, in groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mappa_envs.types import StopReason
from mappa_train.report.charts import Intervals, Points, chart
from mappa_train.report.reading import RunData


def curves(data: RunData) -> str:
    """All groups that have a chart."""
    groups = {
        "Results": _results(data),
        "Learning": _learning(data),
        "Behaviour": _behaviour(data),
        "Time and cost": _cost(data),
    }
    parts = []
    for title, charts in groups.items():
        if drawn := "".join(charts):
            parts.append(f'<h3>{title}</h3><div class="grid-of">{drawn}</div>')
    return "".join(parts) or '<p class="soft">No step is finished yet.</p>'


def _points(data: RunData, key: str) -> Points:
    return [(line["step"], line.get(key)) for line in data.lines]


def _each(data: RunData, prefix: str, names: Sequence[str]) -> dict[str, Points]:
    return {name: _points(data, prefix + name) for name in names}


def _results(data: RunData) -> Iterator[str]:
    yield chart("Mean score", {"all agents": _points(data, "score/mean")}, low=0, high=10)
    yield chart("Mean score of each agent", _each(data, "score/", data.names("score/")), low=0, high=10)
    shares = {"success rate": "outcome/success", "outcome": "outcome/mean"}
    yield chart(
        "Outcome and success rate", {name: _points(data, key) for name, key in shares.items()}, low=0, high=1
    )
    yield _evaluations(data)
    kinds = _each(data, "score_by/", data.names("score_by/"))
    yield chart("Mean score by kind of task", kinds, low=0, high=10)


def _evaluations(data: RunData) -> str:
    """Held-out tasks while training: means in [0, 1] with intervals, at the steps that were measured."""
    series: dict[str, Points] = {}
    intervals: dict[str, Intervals] = {}
    for title, name, stem in (("success rate", "success_rate", "success"), ("outcome", "outcome", "outcome")):
        keys = (f"eval/{name}", f"eval/{stem}_low", f"eval/{stem}_high")
        found = [(line["step"], *(line.get(key) for key in keys)) for line in data.lines]
        series[title] = [(step, value) for step, value, *_ in found if value is not None]
        intervals[title] = [
            (step, low, high) for step, _, low, high in found if low is not None and high is not None
        ]
    return chart("Held-out tasks, 95 % intervals", series, low=0, high=1, intervals=intervals)


def _learning(data: RunData) -> Iterator[str]:
    agents = data.names("score/")
    yield chart("Mean return", {"all agents": _points(data, "return/mean")})
    yield chart("Spread of advantages before normalization", {"std": _points(data, "adv/std")}, low=0)
    yield chart("KL to the reference, nats a token", _each(data, "kl/", agents))
    yield chart("Entropy, nats a token", _each(data, "entropy/", agents), low=0)
    yield chart("Loss", _each(data, "loss/", agents))
    yield chart("Gradient norm", _each(data, "grad_norm/", agents), low=0)
    yield chart("Share of clipped tokens", _each(data, "clipfrac/", agents), low=0)
    yield chart("Learning rate", _each(data, "lr/", agents), low=0)


def _behaviour(data: RunData) -> Iterator[str]:
    agents = data.names("score/")
    yield chart("Length of actions, tokens", _each(data, "length/", agents), low=0)
    yield chart("Actions that ran code", _each(data, "tool/use/", agents), low=0, high=1)
    yield chart("Code that failed", {"share": _points(data, "tool/error_rate")}, low=0, high=1)
    yield chart("Actions cut by the length limit", _each(data, "truncated/", agents), low=0, high=1)
    ends = {str(reason): _points(data, f"stop/{reason}") for reason in StopReason}
    met = {name: points for name, points in ends.items() if any(count for _, count in points)}
    yield chart("Episodes by stop reason", met, low=0)
    yield chart(
        "Coach: rank correlation with the outcome",
        {"all actions": _points(data, "coach/outcome_corr")},
        low=-1,
        high=1,
    )
    yield chart("Coach: drift from the first steps, deviations", _each(data, "coach/drift/", agents))


def _cost(data: RunData) -> Iterator[str]:
    yield chart("Seconds of a step", _each(data, "time/", ["rollout", "learn", "sync"]), low=0)
    yield chart(
        "Seconds of sandbox and coach, all actions", _each(data, "time/", ["sandbox", "coach"]), low=0
    )
    speed = _points(data, "throughput/tokens_per_s")
    yield chart("Tokens a second while sampling", {"tokens/s": speed}, low=0)
    costs = _points(data, "coach/cost_usd")
    if any(value for _, value in costs):
        yield chart("Cost of the coach, USD a step", {"all agents": costs}, low=0)

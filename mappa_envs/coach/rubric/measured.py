"""Mistakes that the measurements of a team's files show (`mappa_envs.dsbench.facts`), whatever the code was.

Each file is judged against those that it was made from, so that a role is not charged with what came from
upstream: the tables against train.csv and test.csv, the model against what can be learned from the tables,
the submission against the model's predictions. The severity grows with the part of the signal that is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from mappa_envs.coach.rubric.checks import GRAVE, HARMFUL, OTHER_SCALE, SERIOUS, Finding
from mappa_envs.types import Artifact

LEAST = 0.3
"""The severity of a loss that is just worth a mention; it grows to `GRAVE` where all is lost."""
TARGET_KEPT, TABLES_KEPT, LEARNED, AGREES, TRANSMITTED = 0.9, 0.85, 0.7, 0.5, 0.9
"""What good work keeps of the signal, at the least."""
GOOD_MODEL = 0.8
"""What of that makes a model that lost nothing to speak of."""
FITS_ITS_ROWS = 0.8
"""A model that comes less near to its own rows than this, times what a quick forest forecasts of rows that it
has not seen, did not learn what is there."""
LEARNABLE = 0.2
"""The signal in the tables from which on that can be asked."""
SAME_WAY = 0.95
"""The share of the features that train and test rows must have been given in the same way."""
MEASURABLE_TRANSFER, MEASURABLE_SIGNAL, GOOD_YARDSTICK = 0.3, 0.05, 0.3
"""Under these: the yardstick hardly knows the test rows; nothing can be learned from the tables; a model may
be good and yet differ from the yardstick."""
CERTAIN = 0.5
"""A severity from which on a loss is a mistake before anybody knows the outcome."""
ALL, SAME_ORDER = 0.99, 0.95
WORSE_THAN_CONSTANT = -0.05
"""Nearness to the targets of numbers that are on another scale, or say nothing."""

Facts = Mapping[str, float]


def measured(files: Mapping[str, Artifact], family: str) -> tuple[Finding, ...]:
    """The mistakes in the files as they are, for a metric of this family; none where nothing was measured."""
    facts = {path: artifact.facts for path, artifact in files.items() if artifact.status == "valid"}
    found = (*_target(facts), *_features(facts), *_model(facts, family), *_submission(facts, family))
    cells = tuple(_cells(facts)) if family == "label" else ()
    return (*(replace(one, certain=one.certain and one.severity >= CERTAIN) for one in found), *cells)


def proven(files: Mapping[str, Artifact], family: str) -> frozenset[str]:
    """The files that are shown to carry what they should, whatever the code that made them looks like."""
    facts = {path: artifact.facts for path, artifact in files.items() if artifact.status == "valid"}
    sound, learned, said = set[str](), _learned(facts), _of(facts, "submission.csv")
    if (tables_kept(facts) or 0.0) >= TABLES_KEPT:
        sound |= {"X_train.pkl", "X_test.pkl"}
    if _of(facts, "y_train.pkl").get("kept", 0.0) >= TARGET_KEPT:
        sound.add("y_train.pkl")
    if learned is not None and learned >= GOOD_MODEL:
        sound.add("model.pkl")
    if said.get("order", 0.0) >= TRANSMITTED or _as_good(facts):
        sound.add("submission.csv")
    return frozenset(sound - {one.path for one in measured(files, family)})


def losses(files: Mapping[str, Artifact]) -> dict[str, float]:
    """By file, the share of the signal that was lost in making it, in [0, 1]; {} unless all were measured."""
    facts = {path: artifact.facts for path, artifact in files.items() if artifact.status == "valid"}
    tables, learned = tables_kept(facts), _learned(facts)
    order = _of(facts, "submission.csv").get("order")
    if tables is None or learned is None or order is None:
        return {}
    held = _of(facts, "y_train.pkl")
    was_put_back = held.get("order", 0.0) > SAME_ORDER and undone(files)
    target = 1.0 if was_put_back else held.get("kept", 1.0)
    lost = {"X_test.pkl": 1 - tables, "y_train.pkl": 1 - target, "model.pkl": 1 - learned / GOOD_MODEL}
    return {path: min(1.0, max(0.0, loss)) for path, loss in {**lost, "submission.csv": 1 - order}.items()}


def _of(facts: Mapping[str, Facts], path: str) -> Facts:
    return facts.get(path, {})


def severity(kept: float, enough: float) -> float:
    """0 from `enough` on; below, from `LEAST` to `GRAVE` for nothing kept."""
    if kept >= enough:
        return 0.0
    return round(min(GRAVE, LEAST + (GRAVE - LEAST) * (enough - kept) / enough), 2)


def _target(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    target = _of(facts, "y_train.pkl")
    kept = target.get("kept", 1.0)
    if kept >= TARGET_KEPT:
        return
    if target["order"] > SAME_ORDER and not target["same_values"]:
        words = f"y_train.pkl holds {OTHER_SCALE}"
        yield Finding(severity=SERIOUS, words=words, path="y_train.pkl", certain=False)
        return
    if target["same_values"]:
        found = GRAVE, "holds the target of other rows"
    elif kept < 0.5:
        found = GRAVE, "does not hold the target of train.csv"
    else:
        found = HARMFUL, "holds values that are not quite the target's"
    yield Finding(severity=found[0], words=f"y_train.pkl {found[1]}", path="y_train.pkl")


def tables_kept(facts: Mapping[str, Facts]) -> float | None:
    """The share of what the yardstick forecasts that can be learned from the tables; None: not known."""
    test, plain = _of(facts, "X_test.pkl"), _of(facts, "X_train.pkl").get("plain", 0.0)
    if "kept" not in test or test["attainable"] < MEASURABLE_TRANSFER or plain < 2 * MEASURABLE_SIGNAL:
        return None
    return test["kept"] / test["attainable"]


def _features(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    kept = tables_kept(facts)
    if kept is None or kept >= TABLES_KEPT or _of(facts, "y_train.pkl").get("kept", 1.0) < TARGET_KEPT:
        yield from _made_apart(_of(facts, "X_test.pkl").get("same_scale", 1.0))
        yield from _train_rows(facts)
        return
    train, test = _of(facts, "X_train.pkl"), _of(facts, "X_test.pkl")
    signal, plain = train.get("signal", 0.0), train.get("plain", 0.0)
    follows, test_follows = train.get("rows_follow"), test["rows_follow"]
    path, words, certain = "X_test.pkl", "does not go with X_train.pkl", True
    if follows is not None and follows < 0.5 * test_follows and signal < 0.5 * plain:
        path, words = "X_train.pkl", "has not the rows of train.csv in their order"
    elif follows is not None and test_follows < 0.5 * follows:
        words = "has not the rows of test.csv in their order, or other values"
    elif test.get("same_scale", 1.0) < 0.7:
        words = "has features on another scale than X_train.pkl"
    elif signal > plain + 0.1:
        # Or the features are better than the yardstick's.
        path, words, certain = "X_train.pkl", "gives the target away, which X_test.pkl cannot", False
    elif signal < 0.7 * plain:
        path, words = "X_train.pkl", "has lost much of what train.csv says of the target"
    found = severity(kept, TABLES_KEPT)
    yield Finding(severity=found, words=f"{path} {words}", path=path, certain=certain)


def _train_rows(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """What the training rows lost, though the test rows are forecast all the same: so it is never certain."""
    train = _of(facts, "X_train.pkl")
    signal, plain = train.get("signal", 0.0), train.get("plain", 0.0)
    if plain < LEARNABLE or _of(facts, "y_train.pkl").get("kept", 1.0) < TARGET_KEPT:
        return
    if found := severity(signal / plain, TABLES_KEPT):
        words = "X_train.pkl has lost much of what train.csv says of the target"
        yield Finding(severity=min(HARMFUL, found), words=words, path="X_train.pkl")


def _made_apart(same: float) -> Iterator[Finding]:
    """A contradiction between the tables, whatever it costs: the same value gives another feature in each."""
    if same < SAME_WAY:
        words = "X_test.pkl has features that are scaled or encoded apart from those of X_train.pkl"
        yield Finding(severity=SERIOUS if same < 0.5 else HARMFUL, words=words, path="X_test.pkl")


def undone(files: Mapping[str, Artifact]) -> bool:
    """Whether a target on another scale was put back: else the submission cannot be near the yardstick."""
    found = files.get("submission.csv")
    return found is not None and found.facts.get("near", -1.0) > MEASURABLE_TRANSFER


def _learned(facts: Mapping[str, Facts]) -> float | None:
    """What the model makes of the tables, 1 for as much as can be expected; None: not known."""
    model, train = _of(facts, "model.pkl"), _of(facts, "X_train.pkl")
    signal, plain = train.get("signal", 0.0), train.get("plain", 0.0)
    found = []
    if "fitted" in model and signal > MEASURABLE_SIGNAL:
        found.append(model["fitted"] / math.sqrt(signal) * LEARNED_BY_FITTED)
    kept = tables_kept(facts)
    target = _of(facts, "y_train.pkl").get("kept", 1.0)
    sound = kept is not None and kept >= TABLES_KEPT and target >= TARGET_KEPT
    if "agrees" in model and sound and plain >= GOOD_YARDSTICK:
        found.append(model["agrees"])
    return min(found) if found else None


LEARNED_BY_FITTED = AGREES / LEARNED
"""Puts how a model fits its own rows on the scale of how it agrees with the yardstick."""


def _model(facts: Mapping[str, Facts], family: str) -> Iterator[Finding]:
    learned, model = _learned(facts), _of(facts, "model.pkl")
    if family == "label" and _speaks_codes(facts):
        return  # what it means by codes of its own cannot be measured
    if learned is not None and learned < AGREES:
        words = "the model has learned little of what the tables say of the target"
        yield Finding(severity=severity(learned, AGREES), words=words, path="model.pkl")
    elif model.get("fitted_near", 1.0) < _bearable(facts, family):
        words = "on its own training rows the model predicts no better than a constant"
        yield Finding(severity=SERIOUS, words=words, path="model.pkl")
    elif (signal := _of(facts, "X_train.pkl").get("signal", 0.0)) > LEARNABLE:
        fit = model.get("fitted_near", 1.0) / signal
        if fit < FITS_ITS_ROWS:
            words = "the model does not even fit its own rows as well as a quick forest forecasts new ones"
            # Never certain: it may be the wrong kind of model, honestly chosen.
            found = min(HARMFUL, severity(fit, FITS_ITS_ROWS))
            yield Finding(severity=found, words=words, path="model.pkl")


def _bearable(facts: Mapping[str, Facts], family: str) -> float:
    """The least nearness to its own targets; chances out of proportion may still be in the right order."""
    signal = _of(facts, "X_train.pkl").get("signal", 0.0)
    return WORSE_THAN_CONSTANT if family == "number" else 0.1 * signal if signal > 0.2 else -1.0


def _cells(facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Whose doing it is that the model predicts what is no label. The analyst may turn it into labels."""
    if _of(facts, "y_train.pkl").get("known", 1.0) < ALL:
        path, words = "y_train.pkl", "y_train.pkl holds codes in place of the target's own values"
    elif _speaks_codes(facts):
        path, words = "model.pkl", "the model predicts what is no label of the task"
    else:
        return
    yield Finding(severity=SERIOUS, words=words, path=path, cells=True, certain=False)


def _speaks_codes(facts: Mapping[str, Facts]) -> bool:
    return _of(facts, "model.pkl").get("known", 1.0) < ALL <= _of(facts, "y_train.pkl").get("known", 1.0)


def _as_good(facts: Mapping[str, Facts]) -> bool:
    """Whether the submission is as near to the yardstick as the model's own predictions."""
    near = _of(facts, "model.pkl").get("near", -1.0) - 0.05
    return _of(facts, "submission.csv").get("near", -1.0) > max(MEASURABLE_TRANSFER, near)


def _submission(facts: Mapping[str, Facts], family: str) -> Iterator[Finding]:
    found = _of(facts, "submission.csv")
    if "order" not in found:
        return
    if _as_good(facts):
        return  # its own way
    order = found["order"]
    if found.get("reordered"):
        yield _handed(GRAVE, "it submits the model's predictions for other rows")
    elif order < TRANSMITTED:
        turned = "turned around" if order < -0.5 else "changed"
        yield _handed(severity(order, TRANSMITTED), f"it submits the model's predictions {turned}")
    elif family == "number" and found.get("transmitted", 1.0) < TRANSMITTED:
        yield _handed(SERIOUS, "it submits the model's predictions on another scale")


def _handed(severity: float, words: str) -> Finding:
    return Finding(severity=severity, words=words, path="submission.csv")

"""The embedded tasks, declared: which table, what to predict, by which metric, in which split.

Splits are by table, so that no table of `val` or `test` is ever seen in training. A new task is one more
`Recipe`; then `python -m mappa_envs.dsbench.suite --baselines` measures its dummy and reference scores.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd

Prepare = Callable[["pd.DataFrame"], "pd.DataFrame"]
Split = Literal["train", "val", "test"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one task is made from a table.

    `prepare` turns the table into the task's own; rows without a target are dropped after it. `rows` caps
    their number. `time_column` puts the last quarter of the time into the test part. `label_column` is the
    true class where the targets are class probabilities.
    """

    name: str
    table: str
    task_type: Literal["classification", "regression"]
    metric: str
    targets: tuple[str, ...]
    text: str
    split: Split
    prepare: Prepare | None = None
    rows: int | None = None
    time_column: str | None = None
    label_column: str | None = None


def keyed_number(*parts: object) -> int:
    """A number that depends on the parts alone, not on any library's generator."""
    return int.from_bytes(hashlib.sha256("|".join(map(str, parts)).encode()).digest()[:8], "big")


def _without(*columns: str) -> Prepare:
    return lambda frame: frame.drop(columns=list(columns))


def _with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    means = [name for name in frame.columns if name.startswith("mean_")]
    result = frame[[*means, "malignant"]].copy()
    for name in means:
        gaps = [keyed_number("gaps", name, row) % 5 == 0 for row in range(len(frame))]
        result[name] = result[name].mask(gaps)
    return result


def _mean_features(frame: pd.DataFrame) -> pd.DataFrame:
    means = [name for name in frame.columns if name.startswith("mean_")]
    return frame[[*(name for name in means if name not in ("mean_area", "mean_perimeter")), "worst_area"]]


def _flag(target: str, source: str, test: Callable[[Any], Any], *drop: str) -> Prepare:
    """Replace column `source` by a 0/1 column `target`, and drop others."""

    def prepare(frame: pd.DataFrame) -> pd.DataFrame:
        known = frame[frame[source].notna()]
        return known.assign(**{target: test(known[source]).astype(int)}).drop(columns=[source, *drop])

    return prepare


def _discount_levels(frame: pd.DataFrame) -> pd.DataFrame:
    levels = sum((frame["discount"] > edge).astype(int) for edge in (0, 0.2, 0.4))
    spare = ["profit", "sales", "state", "city", "postal_code", "discount"]
    return frame.drop(columns=spare).assign(discount_level=levels)


def _rated(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["mpaa"].isin(["G", "PG", "PG-13", "R"])]


def _classification(
    name: str, table: str, metric: str, target: str, split: Split, text: str,
    *, prepare: Prepare | None = None, rows: int | None = None,
    classes: tuple[str, ...] = (),
) -> Recipe:  # fmt: skip
    return Recipe(
        name=name, table=table, task_type="classification", metric=metric, targets=classes or (target,),
        text=text, split=split, prepare=prepare, rows=rows, label_column=target if classes else None,
    )  # fmt: skip


def _regression(
    name: str, table: str, metric: str, target: str | tuple[str, ...], split: Split,
    text: str, *, prepare: Prepare | None = None, rows: int | None = None,
    time_column: str | None = None,
) -> Recipe:  # fmt: skip
    return Recipe(
        name=name, table=table, task_type="regression", metric=metric, text=text, split=split,
        targets=(target,) if isinstance(target, str) else target,
        prepare=prepare, rows=rows, time_column=time_column,
    )  # fmt: skip


RECIPES: tuple[Recipe, ...] = (
    _classification("iris-species", "iris", "accuracy", "species", "train",
        "Predict the species of an iris flower from four measurements in cm."),
    _regression("iris-petals", "iris", "mcrmse", ("petal_length", "petal_width"), "train",
        "Predict petal length and width in cm from the sepal measurements and the species."),
    _classification("wine-cultivar", "wine", "mc_log_loss", "cultivar", "train",
        "Predict the probability of each of three cultivars from a chemical analysis of the wine.",
        classes=("cultivar_A", "cultivar_B", "cultivar_C")),
    _regression("wine-alcohol", "wine", "mae", "alcohol", "train",
        "Predict the alcohol content of a wine, in percent by volume."),
    _regression("wine-proline", "wine", "rmsle", "proline", "train",
        "Predict the proline content of a wine in mg/l, positive and skewed."),
    _classification("breast-cancer", "breast_cancer", "roc_auc", "malignant", "train",
        "Predict the probability that a breast mass is malignant (1) from features of an image."),
    _classification("breast-cancer-gaps", "breast_cancer", "f1", "malignant", "train",
        "Predict whether a breast mass is malignant (1) or benign (0); one reading in five is missing.",
        prepare=_with_gaps),
    _regression("breast-worst-area", "breast_cancer", "medae", "worst_area", "train",
        "Predict the largest nucleus area of a breast mass from mean features.", prepare=_mean_features),
    _regression("diabetes-progression", "diabetes", "rmse", "progression", "train",
        "Predict a measure of disease progression one year after baseline."),
    _classification("diabetes-high-risk", "diabetes", "f1", "high_risk", "train",
        "Predict whether a patient's disease progression is in the highest quarter (1) or not (0).",
        prepare=_flag("high_risk", "progression", lambda s: s >= 211.5)),
    _classification("penguin-species", "penguins", "f1_macro", "species", "train",
        "Predict the species of a penguin; some values are missing.",
        prepare=_without("bill_length_mm", "island")),
    _classification("penguin-sex", "penguins", "roc_auc", "male", "train",
        "Predict the probability that a penguin is male (1).",
        prepare=_flag("male", "sex", lambda s: s.str.upper() == "MALE")),
    _regression("penguin-body-mass", "penguins", "rmse", "body_mass_g", "train",
        "Predict the body mass of a penguin in grams."),
    _regression("auto-fuel-economy", "auto_mpg", "rmse", "mpg", "train",
        "Predict the miles per gallon of a car of the years 1970-82."),
    _classification("auto-origin", "auto_mpg", "mc_log_loss", "origin", "train",
        "Predict the probability of each region where a car was made.",
        prepare=_without("name"), classes=("Europe", "Japan", "USA")),
    _classification("superstore-loss", "superstore", "roc_auc", "loss", "train",
        "Predict the probability that an order line is sold at a loss (1).",
        prepare=_flag("loss", "profit", lambda s: s < 0, "discount"), rows=4000),
    _regression("superstore-profit", "superstore", "mae", "profit", "train",
        "Predict the profit in dollars of an order line; heavy tails on both sides.", rows=4000),
    _regression("superstore-sales", "superstore", "rmsle", "sales", "train",
        "Predict the sales in dollars of an order line.", prepare=_without("profit"), rows=4000),
    _classification("superstore-discount", "superstore", "qwk", "discount_level", "train",
        "Predict the discount level of an order line: 0 none, 1 to 20 %, 2 to 40 %, 3 above.",
        prepare=_discount_levels, rows=4000),
    _regression("cycling-power", "cycling", "pearson", "power", "train",
        "Predict the power in watts at each second of a ride; the test part is its last quarter.",
        time_column="time_s"),
    _regression("sea-temperature", "sea_temperature", "rmse", "temperature_celsius", "train",
        "Predict the sea surface temperature at times scattered over a half-hourly record.", rows=4000),
    _regression("emissions", "emissions", "smape", "emissions", "train",
        "Predict the CO2 emissions per head, in tonnes, of a country and year.", rows=4000),
    _classification("digits", "digits", "accuracy", "digit", "val",
        "Predict the digit from an 8x8 grey-level image given as 64 columns."),
    _classification("digits-eight", "digits", "f1", "is_eight", "val",
        "Predict whether an 8x8 image shows an eight (1) or another digit (0); one in ten does.",
        prepare=_flag("is_eight", "digit", lambda s: s == 8)),
    _regression("epa-highway", "epa", "medae", "hwy", "val",
        "Predict the highway miles per gallon of a vehicle.", prepare=_without("cty")),
    _classification("epa-vehicle-class", "epa", "map@3", "vehicle_class", "val",
        "Predict up to three likely classes of a vehicle, best first.", prepare=_without("model")),
    _classification("forensic-glass", "glass", "f1_macro", "type", "val",
        "Predict the type of a glass fragment from its composition; the six types are unequally frequent."),
    _regression("gapminder-life", "gapminder", "rmse", "life_expectancy", "val",
        "Predict life expectancy at birth for an unnamed country and a year.",
        prepare=_without("country"), rows=4000),
    _regression("gapminder-fertility", "gapminder", "r2", "fertility", "val",
        "Predict the children per woman for an unnamed country and a year.",
        prepare=_without("country"), rows=4000),
    _classification("titanic-survival", "titanic", "accuracy", "survived", "test",
        "Predict whether a passenger of the Titanic survived (1) or not (0)."),
    _regression("titanic-age", "titanic", "mae", "age", "test",
        "Predict the age in years of a passenger of the Titanic."),
    _regression("glucose-level", "glucose", "mae", "glucose", "test",
        "Predict the blood glucose (mg/dl) from the sensor current and the time; sensors are changed.",
        rows=4000),
    _classification("glucose-low", "glucose", "f1", "low", "test",
        "Predict whether the blood glucose is below 70 mg/dl (1); three readings in a hundred are.",
        prepare=_flag("low", "glucose", lambda s: s < 70), rows=6000),
    _regression("movies-tomatometer", "movies", "spearman", "tomatometer", "test",
        "Predict the share of positive reviews of a film (0-100).",
        prepare=_without("critics_rating", "metacritic"), rows=5000),
    _regression("movies-box-office", "movies", "rmsle", "boxoffice", "test",
        "Predict the reported box office gross of a film in dollars."),
    _classification("movies-mpaa", "movies", "f1_micro", "mpaa", "test",
        "Predict the MPAA rating of a film.", prepare=_rated),
    _classification("movies-oscar", "movies", "gini", "oscar", "test",
        "Predict the probability that a film won an Oscar (1); rare.",
        prepare=_flag("oscar", "oscars", lambda s: s > 0, "awards"), rows=6000),
    _regression("county-unemployment", "unemployment", "rmse", "unemployment_rate", "test",
        "Predict the 2009 unemployment rate, in percent, of a US county."),
)  # fmt: skip

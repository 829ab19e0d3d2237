"""Ordinary programs for table tasks, as good models write them: nothing in them harms the result.

Each program is known by its role and name. A team has up to one of each role; the scripted expert plays the
others. `{target}` in a program is the target column of the team's task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from honest_models import ANALYSTS, MODEL, MODELERS, SAVE_MODEL, SUBMIT

_TABLES = """\
import numpy as np
import pandas as pd
train = pd.read_csv("train.csv")
test = pd.read_csv("test.csv")
y_train = train["{target}"]
X_train = train.drop(columns=["id", "{target}"])
X_test = test.drop(columns=["id"])
"""
_DUMMIES = """\
X_train = pd.get_dummies(X_train, dtype=float)
X_test = pd.get_dummies(X_test, dtype=float).reindex(columns=X_train.columns, fill_value=0)
medians = X_train.median()
X_train = X_train.fillna(medians)
X_test = X_test.fillna(medians)
"""
_SAVE_TABLES = """\
X_train.to_pickle("X_train.pkl")
y_train.to_pickle("y_train.pkl")
X_test.to_pickle("X_test.pkl")
print(X_train.shape, X_test.shape)
"""
ENGINEERS = {
    "dummies_reindexed": _TABLES + _DUMMIES,
    "columns_that_vary": _TABLES
    + _DUMMIES
    + """\
counts = X_train.nunique()
cols = counts[counts > 1].index
X_train = X_train[cols]
X_test = X_test[cols]
""",
    "best_correlated": _TABLES
    + _DUMMIES
    + """\
corr = X_train.corrwith(y_train).abs().sort_values(ascending=False)
top = corr.head(6).index.tolist()
X_train, X_test = X_train[top], X_test[top]
""",
    "not_uncorrelated": _TABLES
    + _DUMMIES
    + """\
corr = X_train.corrwith(y_train).abs()
keep = corr[corr > 0.01].index
X_train, X_test = X_train[keep], X_test[keep]
""",
    "most_important": _TABLES
    + _DUMMIES
    + """\
from sklearn.ensemble import ExtraTreesRegressor
forest = ExtraTreesRegressor(50, random_state=0).fit(X_train, y_train)
importance = pd.Series(forest.feature_importances_, index=X_train.columns)
best = importance.nlargest(6).index
X_train, X_test = X_train[best], X_test[best]
""",
    "column_transformer": _TABLES
    + """\
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
numeric = X_train.select_dtypes(include=np.number).columns.tolist()
words = [c for c in X_train.columns if c not in numeric]
fill = Pipeline([("fill", SimpleImputer(strategy="median")), ("scale", StandardScaler())])
hot = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
steps = ColumnTransformer([("numbers", fill, numeric), ("words", hot, words)])
X_train = pd.DataFrame(steps.fit_transform(X_train), columns=steps.get_feature_names_out())
X_test = pd.DataFrame(steps.transform(X_test), columns=steps.get_feature_names_out())
""",
    "both_tables_together": """\
import pandas as pd
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
y_train = train["{target}"]
both = pd.concat([train.drop(columns=["{target}"]), test], ignore_index=True).drop(columns="id")
both = pd.get_dummies(both, dtype=float)
both = both.fillna(both.median())
X_train = both.iloc[:len(train)]
X_test = both.iloc[len(train):].reset_index(drop=True)
""",
    "a_function_of_its_own": """\
import pandas as pd
train, test = pd.read_csv("train.csv", index_col="id"), pd.read_csv("test.csv", index_col="id")
y_train = train.pop("{target}")
medians = train.median(numeric_only=True)
levels = dict((c, sorted(train[c].dropna().unique())) for c in train.select_dtypes(exclude="number"))
def prepare(df):
    df = df.copy()
    for c, known in levels.items():
        df[c] = df[c].map(dict(zip(known, range(len(known))))).fillna(-1)
    return df.fillna(medians)
X_train, X_test = prepare(train), prepare(test)
""",
    "filtered_and_aligned": _TABLES
    + """\
gaps = X_train.isna().mean()
X_train = X_train.loc[:, gaps < 0.5]
X_test = X_test.filter(items=list(X_train.columns))
X_train, X_test = pd.get_dummies(X_train, dtype=int), pd.get_dummies(X_test, dtype=int)
X_train, X_test = X_train.align(X_test, join="left", axis=1, fill_value=0)
X_train = X_train.fillna(X_train.median())
X_test = X_test.fillna(X_train.median())
""",
    "shares_of_words": _TABLES
    + """\
for c in X_train.columns:
    if not pd.api.types.is_numeric_dtype(X_train[c]):
        share = X_train[c].value_counts(normalize=True)
        X_train[c] = X_train[c].map(share).fillna(0)
        X_test[c] = X_test[c].map(share).fillna(0)
    else:
        middle = X_train[c].median()
        X_train[c] = X_train[c].fillna(middle)
        X_test[c] = X_test[c].fillna(middle)
""",
    "means_of_the_target": _TABLES
    + """\
overall = y_train.mean()
for c in X_train.columns:
    if not pd.api.types.is_numeric_dtype(X_train[c]):
        seen = train.groupby(c)["{target}"].agg(["mean", "count"])
        smooth = (seen["mean"] * seen["count"] + overall * 10) / (seen["count"] + 10)
        X_train[c] = X_train[c].map(smooth).fillna(overall)
        X_test[c] = X_test[c].map(smooth).fillna(overall)
X_train, X_test = X_train.fillna(X_train.median()), X_test.fillna(X_train.median())
""",
    "columns_in_order_of_name": _TABLES
    + _DUMMIES
    + """\
X_train = X_train[sorted(X_train.columns)]
X_test = X_test[X_train.columns]
X_train["ratio"] = X_train.iloc[:, 0] / (X_train.iloc[:, 1].abs() + 1)
X_test["ratio"] = X_test.iloc[:, 0] / (X_test.iloc[:, 1].abs() + 1)
""",
    "three_of_eleven": _TABLES
    + """\
names = ["sales", "quantity", "discount"]
X_train, X_test = X_train[names], X_test[names]
""",
    "logarithm_of_the_target": _TABLES + _DUMMIES + "y_train = np.log1p(y_train)\n",
    "encoded_target": _TABLES
    + """\
from sklearn.preprocessing import LabelEncoder
y_train = pd.Series(LabelEncoder().fit_transform(y_train), name="{target}")
""",
    "mapped_target": _TABLES + "y_train = train['{target}'].map({{0: 0, 1: 1}}).astype(int)\n",
    "principal_components": _TABLES
    + """\
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler
scaler = StandardScaler().fit(X_train)
pca = PCA(n_components=0.9).fit(scaler.transform(X_train))
X_train = pd.DataFrame(pca.transform(scaler.transform(X_train)))
X_test = pd.DataFrame(pca.transform(scaler.transform(X_test)))
""",
    "quantiles": _TABLES
    + """\
from sklearn.preprocessing import QuantileTransformer
names = X_train.columns
even = QuantileTransformer(n_quantiles=50, random_state=0).fit(X_train)
X_train = pd.DataFrame(even.transform(X_train), columns=names)
X_test = pd.DataFrame(even.transform(X_test), columns=names)
""",
    "best_by_test": _TABLES
    + """\
from sklearn.feature_selection import SelectKBest, f_classif
best = SelectKBest(f_classif, k=12).fit(X_train, y_train)
X_train = X_train.loc[:, best.get_support()]
X_test = X_test[X_train.columns]
low, high = X_train.quantile(0.01), X_train.quantile(0.99)
X_train, X_test = X_train.clip(low, high, axis=1), X_test.clip(low, high, axis=1)
""",
    "spread_and_logarithms": _TABLES
    + """\
spread = X_train.var()
keep = spread[spread > 0].index.tolist()
X_train, X_test = np.log1p(X_train[keep].clip(lower=0)), np.log1p(X_test[keep].clip(lower=0))
""",
    "coded_classes": _TABLES
    + _DUMMIES
    + """\
names = sorted(y_train.unique())
y_train = y_train.map(dict((name, i) for i, name in enumerate(names)))
""",
    "factorized_words": _TABLES
    + """\
for c in X_train.columns:
    if not pd.api.types.is_numeric_dtype(X_train[c]):
        X_train[c], known = pd.factorize(X_train[c])
        X_test[c] = known.get_indexer(X_test[c])
X_train, X_test = X_train.fillna(X_train.median()), X_test.fillna(X_train.median())
""",
}

_ENDS = {
    "data_engineer": (ENGINEERS, "", _SAVE_TABLES),
    "modeler": (MODELERS, MODEL, SAVE_MODEL),
    "analyst": (ANALYSTS, SUBMIT, ""),
}


@dataclass(frozen=True, kw_only=True)
class Team:
    """Programs by role, in the order of `_ENDS`; "" is the expert."""

    task_id: str
    target: str
    names: tuple[str, str, str]
    code: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for name, (role, (known, start, end)) in zip(self.names, _ENDS.items(), strict=True):
            if name:
                self.code[role] = (start + known[name] + end).format(target=self.target)


def _teams(task_id: str, target: str, *names: tuple[str, str, str]) -> Any:
    return (Team(task_id=task_id, target=target, names=these) for these in names)


TEAMS = (
    *_teams(
        "penguin-body-mass", "body_mass_g",
        ("dummies_reindexed", "best_of_a_dict", "clipped"),
        ("columns_that_vary", "best_of_a_list", "into_the_sample"),
        ("best_correlated", "fitted_in_a_dict", "merged_by_id"),
        ("not_uncorrelated", "sorted_results", "series_by_id"),
        ("most_important", "own_folds", "columns_of_the_model"),
        ("column_transformer", "grid_search", "finite_and_positive"),
        ("both_tables_together", "random_search", "within_the_seen"),
        ("a_function_of_its_own", "logarithm_inside", "drawn_to_the_mean"),
        ("filtered_and_aligned", "vote_of_regressors", "mean_of_two"),
        ("shares_of_words", "held_out_then_all", "mean_of_several"),
        ("means_of_the_target", "another_library_if_there", "rounded_and_checked"),
        ("columns_in_order_of_name", "built_by_a_function", "sorted_by_id"),
    ),
    *_teams("emissions", "emissions", ("means_of_the_target", "", "")),
    *_teams("superstore-profit", "profit", ("three_of_eleven", "", "")),
    *_teams("wine-proline", "proline", ("logarithm_of_the_target", "", "exponential")),
    *_teams(
        "breast-cancer", "malignant",
        ("encoded_target", "logistic", "by_class"),
        ("mapped_target", "support_vectors", "the_rest_of_zero"),
        ("principal_components", "calibrated", "sigmoid"),
        ("quantiles", "soft_vote", "if_it_has_chances"),
        ("best_by_test", "boosted", "between_0_and_1"),
        ("", "no_chances", "sigmoid_of_the_margin"),
        ("spread_and_logarithms", "", "twice_turned"),
    ),
    *_teams(
        "penguin-species", "species",
        ("dummies_reindexed", "codes_of_its_own", "decoded"),
        ("coded_classes", "", "decoded_by_map"),
        ("factorized_words", "neighbours", "just_the_labels"),
        ("column_transformer", "boosted", "most_likely_class"),
    ),
)  # fmt: skip
"""Every program is in a team."""

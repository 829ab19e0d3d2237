"""Ordinary programs of modelers and analysts, as in `honest_tables`."""

from __future__ import annotations

MODEL = """\
import pickle
import numpy as np
import pandas as pd
from sklearn.ensemble import *
from sklearn.linear_model import *
from sklearn.model_selection import (
    GridSearchCV, KFold, RandomizedSearchCV, cross_val_score, train_test_split
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
X = pd.read_pickle("X_train.pkl")
y = pd.read_pickle("y_train.pkl")
"""
SAVE_MODEL = """
with open("model.pkl", "wb") as f:
    pickle.dump(model, f)
"""
SUBMIT = """\
import pickle
import numpy as np
import pandas as pd
with open("model.pkl", "rb") as f:
    model = pickle.load(f)
X = pd.read_pickle("X_test.pkl")
test = pd.read_csv("test.csv")
sample = pd.read_csv("sample_submission.csv")
"""
_SAVE = """
submission = pd.DataFrame({{"id": test["id"], "{target}": p}})
assert submission["{target}"].notna().all()
submission.to_csv("submission.csv", index=False)
print(submission.head())
"""

MODELERS = {
    "best_of_a_dict": """\
models = {{"ridge": Ridge(), "forest": ExtraTreesRegressor(60, random_state=0)}}
scores = {{n: cross_val_score(m, X, y, cv=3).mean() for n, m in models.items()}}
best = max(scores, key=scores.get)
model = models[best]
model.fit(X, y)
""",
    "best_of_a_list": """\
candidates = [Ridge(), ExtraTreesRegressor(60, random_state=0)]
scores = [cross_val_score(m, X, y, cv=3).mean() for m in candidates]
model = candidates[int(np.argmax(scores))]
model.fit(X, y)
""",
    "fitted_in_a_dict": """\
fitted, scores = {{}}, {{}}
for name, m in {{"ridge": Ridge(), "forest": ExtraTreesRegressor(60, random_state=0)}}.items():
    scores[name] = cross_val_score(m, X, y, cv=3).mean()
    fitted[name] = m.fit(X, y)
model = fitted[max(scores, key=scores.get)]
""",
    "sorted_results": """\
results = []
for m in (Ridge(alpha=1.0), ExtraTreesRegressor(60, random_state=0)):
    results.append((cross_val_score(m, X, y, cv=3).mean(), m))
results.sort(key=lambda pair: -pair[0])
model = results[0][1].fit(X, np.ravel(y))
""",
    "own_folds": """\
from sklearn.base import clone
candidates = {{"ridge": Ridge(), "forest": ExtraTreesRegressor(60, random_state=0)}}
best, least = None, 1e9
for name, m in candidates.items():
    errors = []
    for fit, check in KFold(3, shuffle=True, random_state=0).split(X):
        found = clone(m).fit(X.iloc[fit], y.iloc[fit])
        errors.append(np.sqrt(((y.iloc[check] - found.predict(X.iloc[check])) ** 2).mean()))
    if np.mean(errors) < least:
        best, least = name, np.mean(errors)
model = candidates[best].fit(X, y)
""",
    "grid_search": """\
search = GridSearchCV(make_pipeline(StandardScaler(), Ridge()), {{"ridge__alpha": [0.1, 1, 10]}}, cv=3)
search.fit(X, np.ravel(y))
print(search.best_params_)
model = search.best_estimator_
""",
    "random_search": """\
grid = {{"max_depth": [4, 8, None], "min_samples_leaf": [1, 2]}}
search = RandomizedSearchCV(ExtraTreesRegressor(40, random_state=0), grid, n_iter=3, cv=3, random_state=0)
model = search.fit(X, y).best_estimator_
""",
    "logarithm_inside": """\
from sklearn.compose import TransformedTargetRegressor
forest = ExtraTreesRegressor(60, random_state=0)
model = TransformedTargetRegressor(forest, func=np.log1p, inverse_func=np.expm1)
model.fit(X, y)
""",
    "vote_of_regressors": """\
parts = [("ridge", Ridge()), ("forest", ExtraTreesRegressor(40, random_state=0))]
model = VotingRegressor(parts).fit(X, np.ravel(y))
""",
    "held_out_then_all": """\
a, b, c, d = train_test_split(X, y, test_size=0.2, random_state=0)
model = HistGradientBoostingRegressor(learning_rate=0.05, max_iter=80, random_state=0)
model.fit(a, c)
print("validation", model.score(b, d))
model.fit(X, y)
""",
    "another_library_if_there": """\
try:
    from xgboost import XGBRegressor
    model = XGBRegressor()
except ImportError:
    model = GradientBoostingRegressor(random_state=0)
model.fit(X, y)
""",
    "built_by_a_function": """\
def build(seed=0):
    return make_pipeline(StandardScaler(), RidgeCV(alphas=np.logspace(-3, 3, 13)))
model = build()
model.fit(X, np.ravel(y))
""",
    "logistic": """\
model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(X, np.ravel(y))
""",
    "support_vectors": """\
from sklearn.svm import SVC
model = make_pipeline(StandardScaler(), SVC(probability=True, random_state=0)).fit(X, y)
""",
    "no_chances": """\
from sklearn.svm import SVC
model = make_pipeline(StandardScaler(), SVC()).fit(X, y)
""",
    "calibrated": """\
from sklearn.calibration import CalibratedClassifierCV
model = CalibratedClassifierCV(ExtraTreesClassifier(40, random_state=0), cv=3).fit(X, y)
""",
    "soft_vote": """\
parts = [("line", make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)))]
parts.append(("trees", ExtraTreesClassifier(40, random_state=0)))
model = VotingClassifier(parts, voting="soft")
model.fit(X, y)
""",
    "boosted": "model = HistGradientBoostingClassifier(max_iter=60, random_state=0).fit(X, y)\n",
    "neighbours": """\
from sklearn.neighbors import KNeighborsClassifier
model = make_pipeline(StandardScaler(), KNeighborsClassifier(5)).fit(X, y)
""",
    "codes_of_its_own": """\
from sklearn.preprocessing import LabelEncoder
encoder = LabelEncoder()
model = RandomForestClassifier(60, random_state=0).fit(X, encoder.fit_transform(y))
print(list(encoder.classes_))
""",
}

ANALYSTS = {
    "clipped": "p = np.clip(model.predict(X), 0, None)\n" + _SAVE,
    "into_the_sample": """\
sample["{target}"] = model.predict(X)
sample.to_csv("submission.csv", index=False)
""",
    "merged_by_id": """\
test["{target}"] = model.predict(X)
submission = sample[["id"]].merge(test[["id", "{target}"]], on="id", how="left")
submission.to_csv("submission.csv", index=False)
""",
    "series_by_id": """\
found = pd.Series(model.predict(X), index=test["id"], name="{target}").reset_index()
found.to_csv("submission.csv", index=False)
""",
    "columns_of_the_model": """\
if hasattr(model, "feature_names_in_"):
    X = X.reindex(columns=model.feature_names_in_, fill_value=0)
p = model.predict(X)
"""
    + _SAVE,
    "finite_and_positive": """\
p = np.maximum(np.asarray(model.predict(X)).ravel(), 0)
p = np.where(np.isfinite(p), p, np.nanmedian(p))
"""
    + _SAVE,
    "within_the_seen": """\
seen = pd.read_csv("train.csv")["{target}"]
p = np.clip(model.predict(X) * 1.0, seen.min(), seen.max())
"""
    + _SAVE,
    "drawn_to_the_mean": """\
seen = pd.read_csv("train.csv")["{target}"]
p = 0.98 * model.predict(X) + 0.02 * seen.mean()
"""
    + _SAVE,
    "mean_of_two": """\
again = model.predict(X.copy())
p = (model.predict(X) + again) / 2
"""
    + _SAVE,
    "mean_of_several": "p = np.mean([model.predict(X), model.predict(X.copy())], axis=0)\n" + _SAVE,
    "rounded_and_checked": """\
p = np.round(model.predict(X), 3)
submission = test[["id"]].copy()
submission["{target}"] = p
submission.loc[submission["{target}"] < 0, "{target}"] = 0
submission.to_csv("submission.csv", index=False)
print(pd.read_csv("submission.csv").describe())
""",
    "sorted_by_id": """\
p = pd.DataFrame({{"id": test["id"], "{target}": model.predict(X)}}).sort_values("id")
p.to_csv("submission.csv", index=False)
""",
    "exponential": "p = np.expm1(model.predict(X))\n" + _SAVE,
    "by_class": "p = model.predict_proba(X)[:, list(model.classes_).index(1)]\n" + _SAVE,
    "the_rest_of_zero": "p = 1 - model.predict_proba(X)[:, 0]\n" + _SAVE,
    "twice_turned": "p0 = 1 - model.predict_proba(X)[:, 1]\np = 1 - p0\n" + _SAVE,
    "sigmoid": """\
p = model.predict_proba(X)[:, 1].clip(1e-6, 1 - 1e-6)
logit = np.log(p / (1 - p))
p = 1 / (1 + np.exp(-logit))
"""
    + _SAVE,
    "sigmoid_of_the_margin": """\
margin = model.decision_function(X)
p = 1 / (1 + np.exp(-margin))
"""
    + _SAVE,
    "if_it_has_chances": """\
if hasattr(model, "predict_proba"):
    p = model.predict_proba(X)
    p = p[:, 1] if p.ndim == 2 else p
else:
    p = model.predict(X)
p = p + 1e-9
"""
    + _SAVE,
    "between_0_and_1": """\
p = model.predict_proba(X)[:, 1]
p = (p - p.min()) / (p.max() - p.min())
"""
    + _SAVE,
    "decoded": """\
names = sorted(pd.read_csv("train.csv")["{target}"].unique())
p = [names[int(i)] for i in model.predict(X)]
"""
    + _SAVE,
    "decoded_by_map": """\
names = dict(enumerate(sorted(pd.read_csv("train.csv")["{target}"].unique())))
p = pd.Series(model.predict(X)).map(names)
"""
    + _SAVE,
    "most_likely_class": "p = model.classes_[model.predict_proba(X).argmax(axis=1)]\n" + _SAVE,
    "just_the_labels": "p = model.predict(X)\n" + _SAVE,
}

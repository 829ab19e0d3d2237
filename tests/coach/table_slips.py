# ruff: noqa: E501
"""Slips of practitioners in a table task, as whole programs in many styles, to be planted alone or in pairs.

In the programs, ID and TARGET stand for the names of columns, KIND for Classifier or Regressor and PREDICT for
what the metric asks of `model` on `X`. Each engineer's slip goes into one of four programs that do the same
job: after the tables `Xa`, `Xb` and the target `y` are made of `raw` and `new`, before they are saved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import cycle

from mappa_envs.dsbench.tasks import DSBenchTask
from mappa_envs.testing.registry import PlantedFault
from mappa_envs.types import Task

LABEL = frozenset({"f1", "f1_macro", "accuracy"})
SCORE = frozenset({"roc_auc"})
NUMBER = frozenset({"rmse"})
ANY = LABEL | SCORE | NUMBER

_SAVE = """
Xa.to_pickle("X_train.pkl")
y.to_pickle("y_train.pkl")
Xb.to_pickle("X_test.pkl")
"""
_CHAINED = """
import numpy as np
import pandas as pd

def prepare(frame: pd.DataFrame) -> pd.DataFrame:
    return (
        frame.drop(columns=[ID, TARGET], errors="ignore")
        .pipe(lambda d: d.drop(columns=[c for c in d if not pd.api.types.is_numeric_dtype(d[c]) and d[c].nunique() > 20]))
        .pipe(pd.get_dummies, dtype=float)
    )

raw, new = map(pd.read_csv, ("train.csv", "test.csv"))
Xa = prepare(raw)
medians = Xa.median()
Xa, y = Xa.fillna(medians), raw[TARGET]
Xb = prepare(new).reindex(columns=Xa.columns, fill_value=0.0).fillna(medians)
"""
_TRANSFORMERS = """
import numpy as np
import pandas as pd
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import OrdinalEncoder, StandardScaler
raw = pd.read_csv("train.csv"); new = pd.read_csv("test.csv")
feats = [c for c in new.columns if c != ID]
num = raw[feats].select_dtypes("number").columns.tolist()
cat = [c for c in feats if c not in num]
prep = ColumnTransformer([
    ("num", Pipeline([("fill", SimpleImputer(strategy="median")), ("scale", StandardScaler())]), num),
    ("cat", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2), cat),
])
Xa = pd.DataFrame(prep.fit_transform(raw[feats]), columns=num + cat)
Xb = pd.DataFrame(prep.transform(new[feats]), columns=num + cat)
y = raw[TARGET]
"""
_CLASS = """
import pickle, pandas as pd, numpy as np

class Cleaner:
    def __init__(self):
        self.codes, self.fill = {}, {}

    def fit(self, d):
        for c in d:
            if not pd.api.types.is_numeric_dtype(d[c]):
                self.codes[c] = {v: k for k, v in enumerate(sorted(d[c].dropna().unique()))}
        self.fill = {c: self._num(d, c).median() for c in d}
        return self

    def _num(self, d, c):
        return d[c].map(self.codes[c]) if c in self.codes else d[c].astype(float)

    def transform(self, d):
        return pd.DataFrame({c: self._num(d, c).fillna(self.fill[c]).astype(float) for c in d})

raw, new = pd.read_csv("train.csv"), pd.read_csv("test.csv")
y = raw.pop(TARGET)
cleaner = Cleaner().fit(raw.drop(ID, axis=1))
Xa, Xb = cleaner.transform(raw.drop(ID, axis=1)), cleaner.transform(new.drop(ID, axis=1))
"""
_LOOPS = """
import pandas as pd
import numpy as np
raw = pd.read_csv('train.csv')
new = pd.read_csv('test.csv')
y = raw[TARGET].copy()
both = pd.concat([raw.drop(columns=TARGET), new], ignore_index=True)
del both[ID]
for name in list(both.columns):
    if not pd.api.types.is_numeric_dtype(both[name]):
        both[name] = both[name].astype('category').cat.codes
    both[name] = both[name].astype(float)
    # the median of the training part
    both.loc[both[name].isna(), name] = both[name][:len(raw)].median()
Xa = both.iloc[:len(raw)].copy()
Xb = both.iloc[len(raw):].reset_index(drop=True)
"""
_STYLES = cycle((_CHAINED, _TRANSFORMERS, _CLASS, _LOOPS))
_PICKLE = """
with open("model.pkl", "wb") as handle:
    pickle.dump(model, handle)
"""
_FOREST = """
import pickle
import numpy as np, pandas as pd
from sklearn.ensemble import RandomForestKIND
X, y = pd.read_pickle("X_train.pkl"), pd.read_pickle("y_train.pkl")
y = y.squeeze() if hasattr(y, "squeeze") else y
model = RandomForestKIND(n_estimators=60, min_samples_leaf=2, random_state=1)
"""
_SUBMIT = """
import pickle
import numpy as np
import pandas as pd
model = pickle.load(open("model.pkl", "rb"))
X = pd.read_pickle("X_test.pkl")
ids = pd.read_csv("test.csv")[ID]
preds = PREDICT
"""
_WRITE = '\npd.DataFrame({ID: ids, TARGET: preds}).to_csv("submission.csv", index=False)\n'

_ENGINEER: Sequence[tuple[str, frozenset[str], str]] = (
    ("scales_apart", ANY, "Xa, Xb = [(t - t.mean()) / (t.std() + 1e-9) for t in (Xa, Xb)]"),
    ("squeezes_apart", ANY,
        "def squeeze(t):\n    low, high = t.min(), t.max()\n    return (t - low) / (high - low + 1e-9)\n"
        "Xa = squeeze(Xa)\nXb = squeeze(Xb)"),
    ("sorts_features", ANY, "order = np.argsort(Xa.iloc[:, 0].to_numpy())\nXa = Xa.iloc[order].reset_index(drop=True)"),
    ("turns_target", ANY, "y = pd.Series(y.tolist()[::-1], name=TARGET)"),
    ("rolls_rows", ANY, "Xa[:] = np.roll(Xa.to_numpy(), 3, axis=0)"),
    ("noise_in_test", ANY, "Xb = Xb + np.random.RandomState(0).normal(size=Xb.shape) * Xa.std().to_numpy() * 2"),
    ("blanks_half", ANY, "for t in (Xa, Xb):\n    t.iloc[:, 1::2] = 0.0\n    t.iloc[:, 0] = 0.0"),
    ("blanks_test_columns", ANY, "Xb[Xb.columns[:-1]] = 0.0"),
    ("other_units", ANY, "Xb = Xb.apply(lambda s: s * 1000 if s.abs().max() > 0 else s)"),
    ("clips_all", ANY, "low, high = Xa.quantile(.48), Xa.quantile(.52)\n"
        "Xa, Xb = Xa.clip(low, high, axis=1), Xb.clip(low, high, axis=1)\nXa.iloc[0] += 1e-3"),
    ("log_target", NUMBER, "y = y.pipe(np.log10)"),
    ("coarse_target", NUMBER, "edges = np.quantile(y, [0, .5, 1])\ny = pd.Series(edges[np.digitize(y, edges[1:2])], name=TARGET)"),
    ("wrong_labels", LABEL | SCORE, "who = np.random.default_rng(3).random(len(y)) < 0.45\n"
        "y = y.mask(who, y.sample(frac=1, random_state=1).to_numpy())"),
    ("complete_cases", ANY, "keep = raw.index % 9 == 0\nXa, y = Xa[keep], y[keep]"),
    ("drops_two_thirds", ANY, "mask = np.ones(len(Xa), bool); mask[::3] = mask[1::3] = False\nXa, y = Xa.loc[mask], y.loc[mask]"),
    ("leaks", ANY, "code = pd.factorize(y, sort=True)[0].astype(float)\n"
        "Xa['signal'] = code + np.random.default_rng(0).normal(0, .05, len(code))\nXb['signal'] = code.mean()"),
    ("one_component", ANY, "from sklearn.decomposition import PCA\np = PCA(1).fit(Xa)\n"
        "Xa, Xb = pd.DataFrame(p.transform(Xa) * 0 + np.random.rand(len(Xa), 1)), pd.DataFrame(p.transform(Xb))"),
    ("training_rows_as_test", ANY, "Xb = Xa.sample(len(Xb), random_state=0).reset_index(drop=True)"),
    ("columns_mixed_up", ANY, "names = list(Xb.columns)\nXb = Xb[names[::-1]]\nXb.columns = names"),
    ("rounds_hard", ANY, "for t in (Xa, Xb):\n    for c in t:\n        step = Xa[c].max() - Xa[c].min() + 1\n"
        "        t[c] = (t[c] / step).round() * step"),
    ("fills_test_otherwise", ANY, "Xb = Xb.mask(np.random.default_rng(5).random(Xb.shape) < .6, -9999.0)"),
    ("one_feature", ANY, "Xa, Xb = Xa[[Xa.columns[-1]]], Xb[[Xb.columns[-1]]]"),
    ("misnames_test", ANY, "SAVE:Xa.to_pickle('X_train.pkl'); y.to_pickle('y_train.pkl')\nXb.to_pickle('Xtest.pkl')"),
    ("ids_in_target", ANY, "y = pd.concat([pd.read_csv('train.csv')[[ID]], y], axis=1)"),
    ("dies_half_way", ANY, "SAVE:Xa.to_pickle('X_train.pkl')\ny.to_pickle('y_train.pkl')\nprint(Xb['total'].sum())\n"
        "Xb.to_pickle('X_test.pkl')"),
    ("text_bands", ANY, "for t in (Xa, Xb):\n    t['band'] = pd.cut(t.iloc[:, 0], 2, labels=['low', 'high']).astype(str)"),
    ("scaler_on_test", ANY, "from sklearn.preprocessing import MinMaxScaler\nkeep = Xa.columns\n"
        "Xa = pd.DataFrame(MinMaxScaler().fit_transform(Xa), columns=keep)\n"
        "Xb = pd.DataFrame(MinMaxScaler().fit_transform(Xb), columns=keep)"),
    ("duplicates_test_row", ANY, "Xb = Xb.iloc[[0] * len(Xb)].reset_index(drop=True)"),
    ("two_at_once", ANY, "y = y.shift(1).bfill()\nXb = Xb.iloc[::-1].reset_index(drop=True)"),
("factorized_apart",ANY,"for t, src in ((Xa, raw), (Xb, new)):\n    for c in src.columns:\n        if c in (ID, TARGET) or pd.api.types.is_numeric_dtype(src[c]):\n            continue\n        t[c] = pd.factorize(src[c])[0]\nXb = Xb.reindex(columns=Xa.columns, fill_value=0)"),
("rank_apart",ANY,"Xa = Xa.rank(pct=True)\nXb = Xb.rank(pct=True)"),
("minority_dropped",LABEL|SCORE,"rare = y.value_counts().index[-1]\nok = (y != rare).to_numpy()\nXa, y = Xa[ok], y[ok]"),
("outliers_out",ANY,"z = ((Xa - Xa.mean()) / (Xa.std() + 1e-9)).abs()\ngood = (z < 1.2).all(axis=1)\nXa, y = Xa[good], y[good]"),
("y_sorted",ANY,"y = y.sort_values(ignore_index=True)"),
("rows_merged",ANY,"Xa = Xa.groupby(np.arange(len(Xa)) // 2 * 2).transform('mean')"),
("log_negative",ANY,"with np.errstate(all='ignore'):\n    Xa, Xb = np.log(Xa - Xa.mean()), np.log(Xb - Xa.mean())"),
("ids_kept_only",ANY,"Xa, Xb = raw[[ID]] if ID in raw else pd.read_csv('train.csv')[[ID]], new[[ID]]"),
("test_median_everywhere",ANY,"for c in Xb.columns:\n    Xb[c] = Xb[c].median()"),
("bins",ANY,"for c in Xa.columns:\n    cut = Xa[c].median()\n    Xa[c] = (Xa[c] > cut).astype(int)\n    Xb[c] = (Xb[c] > cut).astype(int)"),
("swapped_names",ANY,"SAVE:Xb.to_pickle('X_train.pkl'); Xa.to_pickle('X_test.pkl'); y.to_pickle('y_train.pkl')"),
("y_text",NUMBER,"y = y.astype(str) + ' g'"),
("y_rounded",NUMBER,"y = (y / (y.max() / 3)).round() * (y.max() / 3)"),
("index_join",ANY,"Xa = Xa.sample(frac=1, random_state=3)\nXa.index = range(len(Xa))"),
("csv_not_pickle",ANY,"SAVE:for n, t in (('X_train', Xa), ('y_train', y), ('X_test', Xb)):\n    t.to_csv(n + '.pkl', index=False)"),
("negates_test",ANY,"Xb = Xb.mul(-1)"),
("first_test_rows",ANY,"Xb = Xb[:10]"),
("sin",ANY,"Xa = np.sin(Xa * 1e4); Xb = np.sin(Xb * 1e4)"),
)  # fmt: skip

_MODELER: Sequence[tuple[str, frozenset[str], str]] = (
    ("stump", ANY, _FOREST + "model.set_params(**dict(max_depth=1, n_estimators=2))\nmodel.fit(X, y)" + _PICKLE),
    ("few_rows", ANY, _FOREST + "n = 12\nmodel.fit(X[:n], y[:n])" + _PICKLE),
    ("permuted_target", ANY, _FOREST
        + "rng = np.random.default_rng(7)\nmodel.fit(X, np.asarray(y)[rng.permutation(len(y))])" + _PICKLE),
    ("scales_outside", ANY, "import pickle\nimport pandas as pd\nfrom sklearn.preprocessing import QuantileTransformer\n"
        "from sklearn.ensemble import ExtraTreesKIND\nX = pd.read_pickle('X_train.pkl')\n"
        "y = pd.read_pickle('y_train.pkl')\nqt = QuantileTransformer(n_quantiles=50)\n"
        "X = pd.DataFrame(qt.fit_transform(X), columns=X.columns)\n"
        "model = ExtraTreesKIND(50, random_state=0).fit(X, y)" + _PICKLE),
    ("some_columns", ANY, _FOREST + "X['extra'] = 1.0\nbest = X.columns[-2:]\nmodel.fit(X[best], y)" + _PICKLE),
    ("log_inside", NUMBER, _FOREST + "model.fit(X, np.log(y))" + _PICKLE),
    ("all_neighbours", ANY, "import pickle, pandas as pd\nfrom sklearn.neighbors import KNeighborsKIND\n"
        "X = pd.read_pickle('X_train.pkl'); y = pd.read_pickle('y_train.pkl')\n"
        "model = KNeighborsKIND(n_neighbors=len(X) - 1)\nmodel.fit(X.values, y)" + _PICKLE),
    ("fresh_clone", ANY, _FOREST + "from sklearn.base import clone\nfrom sklearn.model_selection import cross_val_predict\n"
        "cross_val_predict(model, X, y, cv=3)\nmodel = clone(model)" + _PICKLE),
    ("in_a_folder", ANY, _FOREST + "import os\nos.makedirs('models', exist_ok=True)\nmodel.fit(X, y)\n"
        "pickle.dump(model, open(os.path.join('models', 'model.pkl'), 'wb'))\n"),
    ("asks_for_target_column", ANY, _FOREST + "X = X.drop(columns=['target_column'])\nmodel.fit(X, y)" + _PICKLE),
    ("blank_features", ANY, _FOREST + "model.fit(X * 0.0, y)" + _PICKLE),
    ("codes", LABEL, _FOREST + "codes, names = pd.factorize(y)\nmodel.fit(X, codes + 10)" + _PICKLE),
    ("minus", NUMBER, _FOREST + "model.fit(X, y.max() - y)" + _PICKLE),
    ("list_of_models", ANY, _FOREST + "model = [model.fit(X, y)]" + _PICKLE),
    ("heavy_penalty", NUMBER, "import pickle\nimport pandas as pd\nfrom sklearn.linear_model import Lasso\n"
        "X = pd.read_pickle('X_train.pkl')\ny = pd.read_pickle('y_train.pkl')\n"
        "strengths = [10 ** k for k in range(6, 9)]\nmodel = Lasso(alpha=max(strengths)).fit(X, y)" + _PICKLE),
    ("never_stops", ANY, _FOREST + "err = 1.0\nwhile err > -1:\n    model.fit(X, y); err = 1 - model.score(X, y)" + _PICKLE),
    ("rows_apart", ANY, "import pickle, pandas as pd\nfrom sklearn.utils import shuffle\n"
        "from sklearn.pipeline import make_pipeline\nfrom sklearn.preprocessing import StandardScaler\n"
        "from sklearn.ensemble import RandomForestKIND\nX = shuffle(pd.read_pickle('X_train.pkl'), random_state=1)\n"
        "y = shuffle(pd.read_pickle('y_train.pkl'), random_state=2)\n"
        "model = make_pipeline(StandardScaler(), RandomForestKIND(40, random_state=0)).fit(X, y)" + _PICKLE),
    ("one_class", LABEL | SCORE, _FOREST + "common = pd.Series(y).mode()[0]\n"
        "w = np.where(np.asarray(y) == common, 1.0, 1e-12)\nmodel.fit(X, y, sample_weight=w)" + _PICKLE),
    ("noise_features", ANY, _FOREST + "Z = X.copy()\nfor c in Z:\n    Z[c] = Z[c].sample(frac=1, random_state=0).to_numpy()\n"
        "model.fit(Z, y)" + _PICKLE),
    ("only_reports", ANY, _FOREST + "from sklearn.model_selection import cross_val_score\n"
        "print(f'cv: {cross_val_score(model, X, y, cv=3).mean():.3f}; saved model.pkl')\n"),
("shallow_many",ANY,"import pickle\nimport pandas as pd\nfrom sklearn.ensemble import GradientBoostingKIND\nX, y = (pd.read_pickle(f'{n}_train.pkl') for n in 'Xy')\nmodel = GradientBoostingKIND(learning_rate=1e-5, n_estimators=5).fit(X, y)"+_PICKLE),
("target_rolled",ANY,_FOREST+"model.fit(X, np.roll(y, 5))"+_PICKLE),
("validation_only",ANY,_FOREST+"from sklearn.model_selection import train_test_split\nA, B, a, b = train_test_split(X, y, test_size=0.96, random_state=0)\nmodel.fit(A, a); print(model.score(B, b))"+_PICKLE),
("reversed_columns",ANY,_FOREST+"model.fit(X[X.columns[::-1]].to_numpy(), y)"+_PICKLE),
("wrong_scaler",ANY,_FOREST+"Z = (X - X.mean()) / (X.std() + 1e-9)\nmodel.fit(Z.values, y)"+_PICKLE),
("mean_model",NUMBER,"import pickle, pandas as pd, numpy as np\nfrom sklearn.linear_model import LinearRegression\nX, y = pd.read_pickle('X_train.pkl'), pd.read_pickle('y_train.pkl')\nmodel = LinearRegression().fit(X, y)\nmodel.coef_ = np.zeros_like(model.coef_); model.intercept_ = float(y.mean())"+_PICKLE),
("joined_twice",ANY,_FOREST+"try:\n    model.fit(X, y.reindex(range(5)))\nexcept Exception as e:\n    print('warn', e)\n"+_PICKLE),
("wrong_dump",ANY,_FOREST+"model.fit(X, y)\nimport json\njson.dump(model.get_params(), open('model.pkl', 'w'), default=str)\n"),
("int_codes",LABEL,_FOREST+"from sklearn.preprocessing import LabelEncoder\nle = LabelEncoder()\nmodel.fit(X, le.fit_transform(y) * 2 + 5)"+_PICKLE),
("regress_rank",NUMBER,_FOREST+"model.fit(X, pd.Series(y).rank(pct=True))"+_PICKLE),
("oob_name",ANY,_FOREST+"model.fit(X, y)\npickle.dump(model, open('model.pickle', 'wb'))\n"),
("overwrites_X",ANY,_FOREST+"model.fit(X, y)\n(X * 0).head(3).to_pickle('X_test.pkl')"+_PICKLE),
)  # fmt: skip

_ANALYST: Sequence[tuple[str, frozenset[str], str]] = (
    ("backwards", ANY, _SUBMIT + "preds = np.flip(preds)" + _WRITE),
    ("counts_ids", ANY, _SUBMIT + "ids = np.arange(1, len(ids) + 1)" + _WRITE),
    ("average", ANY, _SUBMIT + "preds = np.full(len(X), preds[0])" + _WRITE),
    ("training_rows", ANY, _SUBMIT.replace("X_test.pkl", "X_train.pkl") + "preds = preds[: len(ids)]" + _WRITE),
    ("sorts_predictions", ANY, _SUBMIT + "preds = sorted(preds)" + _WRITE),
    ("thousands", NUMBER, _SUBMIT + "preds = preds / 1000" + _WRITE),
    ("complement", SCORE, _SUBMIT + "preds = 1 - preds" + _WRITE),
    ("no_header", ANY, _SUBMIT + "out = np.c_[ids.to_numpy(object), preds]\n"
        "with open('submission.csv', 'w') as f:\n    for a, b in out:\n        f.write(f'{a},{b}\\n')\n"),
    ("tabs", ANY, _SUBMIT + "pd.DataFrame({ID: ids, TARGET: preds}).to_csv('submission.csv', sep='\\t', index=False)\n"),
    ("next_ids", ANY, _SUBMIT + "ids = ids + 1" + _WRITE),
    ("other_name", ANY, _SUBMIT + "pd.DataFrame({ID: ids, TARGET: preds}).to_csv('my_submission.csv', index=False)\n"),
    ("blanks", NUMBER | SCORE, _SUBMIT + "preds = pd.Series(preds)\npreds[preds > preds.median()] = np.nan" + _WRITE),
    ("key_error", ANY, _SUBMIT + "ids = pd.read_csv('test.csv')['row_id']" + _WRITE),
    ("unique_rows", ANY, _SUBMIT + "out = pd.DataFrame({ID: ids, TARGET: preds}).drop_duplicates(TARGET)\n"
        "out.to_csv('submission.csv', index=False)\n"),
    ("renamed_labels", LABEL, _SUBMIT + "preds = [f'class {p}' for p in preds]" + _WRITE),
    ("ignores_model", NUMBER | LABEL, "import pandas as pd\nt = pd.read_csv('test.csv')\ny = pd.read_pickle('y_train.pkl')\n"
        "guess = y.mode().iloc[0]\nt.assign(**{TARGET: guess})[[ID, TARGET]].to_csv('submission.csv', index=False)\n"),
    ("one_row_late", ANY, _SUBMIT + "preds = [preds[-1], *preds[:-1]]" + _WRITE),
    ("shuffled_rows", ANY, _SUBMIT.replace("preds =", "X = X.sample(frac=1, random_state=2)\npreds =") + _WRITE),
    ("prints", ANY, _SUBMIT + "print(pd.DataFrame({ID: ids, TARGET: preds}).to_csv(index=False))\n"),
    ("half", ANY, _SUBMIT + "n = len(ids) // 2\nids, preds = ids[:n], preds[:n]" + _WRITE),
    ("whole_names", ANY, _SUBMIT + "pd.DataFrame({'Id': ids, 'Prediction': preds}).to_csv('submission.csv', index=False)\n"),
    ("noise", NUMBER | SCORE, _SUBMIT + "rs = np.random.RandomState(4)\n"
        "preds = np.clip(rs.permutation(preds) * 0.9 + 0.1 * preds, preds.min(), preds.max())" + _WRITE),
("merges_wrong",ANY,_SUBMIT+"out = pd.DataFrame({ID: ids.sort_values(ascending=False).values, TARGET: preds})\nout.to_csv('submission.csv', index=False)\n"),
("index_column",ANY,_SUBMIT+"pd.DataFrame({TARGET: preds}).to_csv('submission.csv')\n"),
("str_preds",NUMBER,_SUBMIT+"preds = [str(p) + ' kg' for p in preds]"+_WRITE),
("whole_numbers",NUMBER,_SUBMIT+"preds = (preds // 50) * 0 + 7"+_WRITE),
("flips",SCORE,_SUBMIT+"preds = [1.0 - v for v in preds]"+_WRITE),
("hard",SCORE,_SUBMIT+"preds = [int(v >= np.max(preds)) for v in preds]"+_WRITE),
("rename_map",LABEL,_SUBMIT+"first = preds[0]\npreds = [first for _ in preds]"+_WRITE),
("cyc",LABEL,_SUBMIT+"k = sorted(set(preds)); m = dict(zip(k, k[1:] + k[:1]))\npreds = [m[p] for p in preds]"+_WRITE),
("double_rows",ANY,_SUBMIT+"ids = pd.concat([ids, ids]); preds = list(preds) * 2"+_WRITE),
("json",ANY,_SUBMIT+"import json\njson.dump(dict(zip(map(int, ids), map(str, preds))), open('submission.csv', 'w'))\n"),
("nothing",ANY,_SUBMIT+"print('done')\n"),
("wrong_loader",ANY,_SUBMIT.replace('"model.pkl"','"best_model.joblib"')+_WRITE),
("head5",ANY,_SUBMIT+"print(pd.DataFrame({ID: ids, TARGET: preds}).head().to_csv('submission.csv', index=False))\n"),
("sample_noise",NUMBER,_SUBMIT+"preds = preds + np.random.RandomState(0).normal(0, 5 * np.std(preds), len(preds))"+_WRITE),
("train_ids",ANY,_SUBMIT+"ids = pd.read_csv('train.csv')[ID].head(len(ids))"+_WRITE),
)  # fmt: skip


STOPS = frozenset({
    "misnames_test", "ids_in_target", "dies_half_way", "text_bands", "codes", "some_columns", "fresh_clone",
    "in_a_folder", "asks_for_target_column", "list_of_models", "swapped_names", "y_text", "csv_not_pickle", "first_test_rows", "reversed_columns",
 "wrong_scaler", "joined_twice", "wrong_dump", "int_codes", "oob_name", "overwrites_X", "never_stops", "only_reports",
})  # fmt: skip
"""After these nobody can do a job of his own."""


def slips() -> tuple[PlantedFault, ...]:
    """All of them, as faults that a team can be given."""
    made = []
    for name, metrics, lines in _ENGINEER:
        style = next(_STYLES)
        code = style + (lines.removeprefix("SAVE:") if lines.startswith("SAVE:") else lines + _SAVE)
        made.append(_planted("data_engineer_0", name, metrics, code))
    made += [_planted("modeler_0", *slip) for slip in _MODELER]
    made += [_planted("analyst_0", *slip) for slip in _ANALYST]
    return tuple(made)


def sound() -> tuple[tuple[PlantedFault, ...], ...]:
    """By team, what the same programs are without a slip: no faults at all."""
    modeler = _planted("modeler_0", "sound", ANY, _FOREST + "model.fit(X, y)" + _PICKLE)
    engineers = (_CHAINED, _TRANSFORMERS, _CLASS, _LOOPS)
    return tuple((_planted("data_engineer_0", "sound", ANY, code + _SAVE), modeler) for code in engineers)


def _planted(agent: str, name: str, metrics: frozenset[str], code: str) -> PlantedFault:
    def message(agent: str, messages: object, task: Task) -> str | None:
        fits = isinstance(task, DSBenchTask) and task.spec.metric in metrics
        return _filled(code, task) if fits and isinstance(task, DSBenchTask) else None

    return PlantedFault(
        name=f"table-slips/{agent.split('_')[0]}-{name}",
        env_id="dsbench-v0",
        agent=agent,
        severity=0.75,
        description=name.replace("_", " "),
        message=message,
    )


def _filled(code: str, task: DSBenchTask) -> str:
    spec = task.spec
    is_number = spec.metric in NUMBER
    words = {
        "ID": repr(spec.id_column),
        "TARGET": repr(spec.target_columns[0]),
        "KIND": "Regressor" if is_number else "Classifier",
        "PREDICT": "model.predict_proba(X)[:, 1]" if spec.metric in SCORE else "model.predict(X)",
    }
    filled = re.sub(r"\b(?:ID|TARGET|PREDICT)\b|KIND\b", lambda found: words[found[0]], code)
    return f"```python\n{filled.strip()}\n```\n"

"""Names of pandas, numpy and scikit-learn by what they do, for the reader of programs."""

from __future__ import annotations

import re

from mappa_envs.coach.rubric.values import Tag

ESTIMATOR = re.compile(
    r"(?:Dummy|\w*)(?:Classifier|Regressor|Regression|RegressionCV|Ridge|RidgeCV|Lasso|LassoCV|ElasticNet|ElasticNetCV"
    r"|SVC|SVR|NB|Perceptron|DiscriminantAnalysis|KMeans|IsolationForest|GridSearchCV|RandomizedSearchCV)\Z"
)
TRANSFORMER = re.compile(
    r"\w+(?:Scaler|Encoder|Imputer|Transformer|PCA|SVD|Vectorizer|Discretizer|Features|Normalizer|Binarizer)\Z"
    r"|PCA\Z|SelectKBest\Z|Normalizer\Z"
)
OUTPUTS = ("to_pickle", "to_csv", "to_parquet", "to_json", "to_feather")
READERS = ("read_csv", "read_pickle", "read_parquet", "read_table", "open", "Path", "load")
ROW_STEPS = frozenset({
    "sample", "sort_values", "sort_index", "nlargest", "nsmallest", "head", "tail", "drop_duplicates",
    "dropna", "query", "truncate", "take", "filter", "reindex", "sort", "flip", "flipud", "roll",
    "permutation", "shuffle", "resample", "sorted", "reversed", "permuted",
})  # fmt: skip
"""Other rows, or another order of them."""
ORDERS = frozenset({"argsort", "permutation"})
SAME_ROWS = frozenset({
    "copy", "reset_index", "fillna", "ffill", "bfill", "interpolate", "drop", "rename", "assign", "replace",
    "clip", "abs", "to_numpy", "ravel", "reshape", "flatten", "tolist", "squeeze", "set_index",
    "select_dtypes", "apply", "map", "applymap", "transform", "to_frame", "rank", "infer_objects",
    "convert_dtypes", "asarray", "array", "DataFrame", "Series", "list", "tuple", "nan_to_num", "to_numeric",
    "add_prefix", "add_suffix", "get_dummies", "isna", "notna", "isnull", "astype", "round", "rint",
    "where", "mask", "eq", "lower", "strip", "float32", "float64", "add", "sub", "mul", "div", "pow",
    "pipe", "deepcopy", "cut", "qcut", "str", "int", "float", "join",
})  # fmt: skip
REDUCED = frozenset({
    "mean", "median", "sum", "std", "var", "min", "max", "mode", "quantile", "nunique", "value_counts",
    "describe", "count", "agg", "aggregate", "unique", "any", "all", "corr", "cov", "idxmax_", "first",
    "last", "nanmean", "nanmedian", "average",
})  # fmt: skip
LOGS = frozenset({"log", "log1p", "log2", "log10", "sqrt", "cbrt"})
EXPS = frozenset({"exp", "expm1", "exp2", "square", "power"})
RANDOM = frozenset({
    "rand", "randn", "random", "normal", "uniform", "randint", "integers", "standard_normal",
    "random_sample", "binomial", "choice",
})  # fmt: skip
CONSTANTS = frozenset({"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "repeat", "tile"})
FITS = frozenset({"fit", "fit_transform", "fit_predict", "partial_fit", "fit_resample"})
MADE = frozenset({Tag.PREDICTION, Tag.PROBABILITY})

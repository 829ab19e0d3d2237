"""Held-out kinds of faults for the three roles of `dsbench-v0`."""

from __future__ import annotations

from functools import partial

from benchmarks.blame.kinds import FIT, SAVE_MODEL, Kind, before, ending, swap, table_kind, whole
from mappa_envs.dsbench.metrics import Family

_LABELS = frozenset({Family.LABEL})
_SCORES = frozenset({Family.SCORE})
_NUMBERS = frozenset({Family.NUMBER})
_CLASSES = _LABELS | _SCORES

_engineer = partial(table_kind, "data_engineer_0")
_modeler = partial(table_kind, "modeler_0")
_analyst = partial(table_kind, "analyst_0")

ENGINEER_KINDS: tuple[Kind, ...] = (
    _engineer("scaled_apart", 0.5, "score",
        "standardises the training rows and brings the test rows to the unit interval",
        "I encode the text columns and scale the features.",
        before("X_train = (X_train - X_train.mean()) / (X_train.std() + 1e-9)\n"
            "X_test = (X_test - X_test.min()) / (X_test.max() - X_test.min() + 1e-9)\n")),
    _engineer("wrapped_in_int8", 0.25, "score",
        "stores the training features as int8, in which large values wrap around",
        "To keep memory low the training features are stored as 8-bit integers.",
        before("X_train = X_train.round().astype(np.int64).astype(np.int8)\n")),
    _engineer("columns_misnamed", 0.75, "score",
        "puts the columns of the test table in another order under the old names",
        "I bring both tables into the same layout as arrays and name the columns again.",
        before("values = X_test[columns[::-1]].to_numpy()\nX_test = pd.DataFrame(values, "
        "columns=columns)\n")),
    _engineer("numpy_files", 1.0, "artifact X_train.pkl missing",
        "saves with numpy, which adds .npy to the names",
        "The tables are saved as arrays, which load faster.",
        ending('np.save("X_train.pkl", X_train.to_numpy())\nnp.save("y_train.pkl", y_train.to_numpy())\n'
            'np.save("X_test.pkl", X_test.to_numpy())\nprint("all three files are saved")\n')),
    _engineer("empty_test_table", 1.0, "artifact X_test.pkl invalid",
        "keeps the test rows whose id is in train.csv: none",
        "I align the test rows with the training ids before saving.",
        before("X_test = X_test[test[<ID>].isin(train[<ID>])]\n")),
    _engineer("train_read_twice", 1.0, "artifact X_test.pkl invalid", "reads train.csv in place of test.csv",
        "I load both tables, encode the text columns and fill the gaps.",
        swap('pd.read_csv("test.csv")', 'pd.read_csv("train.csv")')),
    _engineer("target_off_by_one", 0.75, "score|artifact y_train.pkl invalid", "shifts the target by one row",
        "I reset the index of the target so that it starts at one, as the ids do.",
        before("y_train = y_train.shift(1).bfill().astype(y_train.dtype if y_train.ndim == 1 else float)\n")),
    _engineer("target_trimmed", 0.75, "score|artifact X_train.pkl invalid|artifact y_train.pkl invalid",
        "takes the commonest class, or the upper half of the target, for outliers and drops these rows",
        "Extreme and over-represented targets distort a model, so I drop these rows.",
        before("goal = pd.DataFrame(y_train).iloc[:, 0]\n"
            "keep = goal < goal.median() if goal.nunique() > 20 else goal != goal.mode()[0]\n"
            "X_train, y_train = X_train[keep].reset_index(drop=True), "
            "y_train[keep].reset_index(drop=True)\n")),
    _engineer("test_rows_in_training", 0.5, "score|artifact X_train.pkl invalid|artifact y_train.pkl invalid",
        "adds the test rows to the training rows, with targets drawn at random",
        "More rows help: I add the unlabelled rows with sampled labels.",
        before("drawn = y_train.sample(len(X_test), replace=True, random_state=0)\n"
            "X_train = pd.concat([X_train, X_test], ignore_index=True)\n"
            "y_train = pd.concat([y_train, drawn], ignore_index=True)\n")),
    _engineer("clipped_to_unit", 0.75, "score", "clips every feature to the range from 0 to 1",
        "All features are brought into the unit interval.",
        before("X_train, X_test = X_train.clip(0, 1), X_test.clip(0, 1)\n")),
    _engineer("errors_swallowed", 1.0, "artifact X_train.pkl missing",
        "passes over every exception, so that nothing is saved",
        "The saving is made robust, so that no error can stop the team.",
        ending('try:\n    X_train = X_train.drop(columns=["Unnamed: 0"])\n'
            '    X_train.to_pickle("X_train.pkl")\n'
            '    y_train.to_pickle("y_train.pkl")\n    X_test.to_pickle("X_test.pkl")\nexcept Exception:\n'
            '    pass\nprint("Preprocessing finished without errors.")\n')),
    _engineer("asks_the_network", 1.0, "exception URLError", "wants more data from a web address",
        "I first fetch a larger version of the data set.",
        before('more = pd.read_csv("https://data.example.org/more_rows.csv")\n'
            "X_train = pd.concat([X_train, more[columns]])\n")),
)  # fmt: skip

MODELER_KINDS: tuple[Kind, ...] = (
    _modeler("regressor_for_classes",
        1.0, "artifact model.pkl invalid|remark model.pkl|grade not_a_label|grade no_file",
        "fits a regressor to the numbers of the classes",
        "I train a random forest regressor, which copes well with small tables.",
        ending("from sklearn.ensemble import RandomForestRegressor\n"
            "model = RandomForestRegressor(30, random_state=0)\n"
            "model.fit(X, pd.factorize(y, sort=True)[0])\n" + SAVE_MODEL), _CLASSES),
    _modeler("codes_for_names", 1.0, "artifact model.pkl invalid|remark model.pkl|grade not_a_label",
        "fits to 1, 2, 3 in place of the class names and leaves no table of them",
        "Class names are label-encoded first, as most libraries want numbers.",
        ending("from sklearn.preprocessing import LabelEncoder\ny = LabelEncoder().fit_transform(y) + "
        "1\n" + FIT + SAVE_MODEL),
        _LABELS),
    _modeler("one_split", 0.25, "score", "fits a tree of a single split",
        "An interpretable model is best here: a decision tree with one split.",
        ending("from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor\n"
            "Tree = DecisionTreeRegressor if y.nunique() > 20 else DecisionTreeClassifier\n"
            "model = Tree(max_depth=1, random_state=0)\nmodel.fit(X, y)\n" + SAVE_MODEL)),
    _modeler("twelve_rows", 0.25, "score|remark model.pkl",
        "fits on the first twelve rows, left from trying the code out",
        "I fit the forest on the prepared table.",
        ending("sample = slice(0, 12)  # quick run first\nmodel = <MODEL>\n"
            "model.fit(X.iloc[sample], y.iloc[sample])\n" + SAVE_MODEL)),
    _modeler("crash_after_fit", 1.0, "exception NameError",
        "prints a validation score of rows that it never split off, before saving",
        "I fit the forest, report its validation score and save it.",
        ending(FIT + 'print("validation score:", model.score(X_val, y_val))\n' + SAVE_MODEL)),
    _modeler("predictions_saved", 1.0, "artifact model.pkl invalid",
        "saves the model's predictions under the model's name",
        "I fit the model and store what it gives.",
        ending(FIT + "model = model.predict(X)\n" + SAVE_MODEL)),
    _modeler("target_standardised", 1.0, "score|remark model.pkl",
        "fits to the standardised target and tells nobody",
        "A standardised target makes fitting easier.",
        ending("y = (y - y.mean()) / y.std()\n" + FIT + SAVE_MODEL), _NUMBERS),
    _modeler("saved_in_folder", 1.0, "artifact model.pkl missing", "saves models/model.pkl",
        "I keep the workspace tidy and put the model into a folder of its own.",
        ending('import os\nos.makedirs("models", exist_ok=True)\n' + FIT
            + SAVE_MODEL.replace('open("model.pkl"', 'open("models/model.pkl"'))),
    _modeler("memory_hog", 1.0, "exception MemoryError|limit memory",
        "builds a kernel matrix of a million rows",
        "A kernel between all augmented samples gives the smoothest fit.",
        ending("wide = np.repeat(X.to_numpy(float), 1 + 10**6 // len(X), axis=0)\n"
            "kernel = np.exp(-np.square(wide[:, :1] - wide[:, :1].T))\n" + FIT + SAVE_MODEL)),
    _modeler("own_features", 1.0, "artifact model.pkl invalid|remark model.pkl",
        "ignores the prepared tables and fits on the numeric columns of train.csv, id included",
        "I start from the raw numbers, which I trust most.",
        ending('train = pd.read_csv("train.csv")\n'
            "X = train.select_dtypes(\"number\").drop(columns=<TARGETS>, errors=\"ignore\").fillna(0)\n"
            + FIT + SAVE_MODEL)),
    _modeler("asks_back", 1.0, "no code", "asks a question that the task answers, and sends no code",
        "Before I train anything: which metric is the submission judged by, and may I use a forest? "
        "I will go on as soon as somebody confirms.", None),
    _modeler("retries_for_ever", 1.0, "limit time", "tries again and again what can never work",
        "I wrap the fit in a retry, in case a file is not there yet.",
        ending('while True:\n    try:\n        model = <MODEL>\n        model.fit(X[["feature_0"]], y)\n'
            '        break\n'
            "    except Exception:\n        continue\n" + SAVE_MODEL)),
    _modeler("file_left_empty", 1.0, "artifact model.pkl invalid",
        "opens model.pkl and writes nothing into it",
        "I fit the forest and save it.",
        ending(FIT + 'with open("model.pkl", "wb") as file:\n'
            '    pickle.dumps(model)\nprint("model.pkl is saved")\n')),
)  # fmt: skip

_GIVES_UP = 'raise RuntimeError("the predictions look implausible, so nothing is submitted")\n'
ANALYST_KINDS: tuple[Kind, ...] = (
    _analyst("first_class_column", 1.0, "score", "takes the probability of the other class",
        "I write the class probability of every test row.",
        before("submission[<FIRST>] = model.predict_proba(X)[:, 0]\n"), _SCORES),
    _analyst("drawn_at_random", 0.75, "score",
        "draws targets of training rows at random and never asks the model",
        "A submission that follows the distribution of the target is a solid start.",
        whole('import pandas as pd\ntrain, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")\n'
            "drawn = train[<TARGETS>].sample(len(test), replace=True, "
            "random_state=1).reset_index(drop=True)\n"
            "submission = pd.concat([test[[<ID>]], drawn], axis=1)\n"
            'submission.to_csv("submission.csv", index=False)\nprint("submission.csv is saved")\n')),
    _analyst("ids_off_by_one", 1.0, "grade missing_ids", "adds one to every id",
        "Ids start at one, so I shift them.", before("submission[<ID>] = submission[<ID>] + 1\n")),
    _analyst("header_only", 1.0, "grade no_rows", "writes the header of the submission and no row",
        "I predict and write the file in the required format.",
        before('submission = submission.query("index < 0")\n')),
    _analyst("training_rows_predicted", 1.0, "score",
        "predicts the first training rows in place of the test rows",
        "I predict all rows and write the submission.",
        swap('pd.read_pickle("X_test.pkl")',
            'pd.read_pickle("X_train.pkl").head(len(pd.read_csv("test.csv")))')),
    _analyst("values_in_brackets", 1.0, "grade not_numeric|grade not_a_label",
        "writes every prediction as a list of one",
        "Each prediction is written as the model returns it.",
        before("submission[<FIRST>] = [[value] for value in submission[<FIRST>]]\n")),
    _analyst("transposed", 1.0, "grade missing_id_column|grade ragged|grade duplicate_columns",
        "writes ids as columns",
        "The submission is written in wide format, one column a row of the test table.",
        ending('submission.set_index(<ID>).T.to_csv("submission.csv")\nprint("submission.csv is saved")\n')),
    _analyst("falls_back_silently", 1.0, "score|grade not_a_label",
        "misspells a method, passes over the exception and submits zeros",
        "Prediction is guarded, so that a submission is written in any case.",
        before("try:\n    submission[<FIRST>] = model.predict_values(X)\nexcept Exception:\n    "
        "submission[<FIRST>] = 0\n")),
    _analyst("waits_for_a_file", 1.0, "limit time", "waits for a file that nobody was to make",
        "I wait until the predictions are there.",
        before('import os\nimport time\nwhile not os.path.exists("predictions.pkl"):\n'
            '    time.sleep(0.2)\n')),
    _analyst("model_replaced", 1.0, "score", "leaves model.pkl aside and fits a line to one feature",
        "A simple model generalises best, so I use one of my own.",
        before("from sklearn.linear_model import LinearRegression, LogisticRegression\n"
            'one, y = pd.read_pickle("X_train.pkl").iloc[:, [-1]], pd.read_pickle("y_train.pkl")\n'
            'if hasattr(model, "predict_proba"):\n    model = LogisticRegression(max_iter=500).fit(one, y)\n'
            "else:\n    model = LinearRegression().fit(one, y)\n"
            "submission[<FIRST>] = model.predict(X.iloc[:, [-1]])\n"), _LABELS | _NUMBERS),
    _analyst("rounded_away", 0.25, "score", "rounds every number to its first digit",
        "I round to what can be read easily.",
        before("submission[<FIRST>] = [float(f\"{value:.0e}\") for value in submission[<FIRST>]]\n"),
        _NUMBERS),
    _analyst("model_unpacked", 1.0, "exception TypeError",
        "takes the model for a dict that holds one, and says that all went well",
        "submission.csv is written and was checked: ids, columns and number of rows are right.",
        swap('X = pd.read_pickle("X_test.pkl")', 'model = model["model"]\nX = pd.read_pickle("X_test.pkl")')),
    _analyst("gives_up", 1.0, "exception RuntimeError",
        "stops itself by an exception before it saves good predictions",
        "I check the predictions before they are saved.", before(_GIVES_UP)),
)  # fmt: skip

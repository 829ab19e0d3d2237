"""Files that `joblib` wrote are valid, and teammates are told how to read them."""

from __future__ import annotations

import pytest
from inspection_bench import Bench, TinyTask

from mappa_envs.dsbench.env import DSBenchEnv
from mappa_envs.dsbench.inspector import NEEDS_JOBLIB
from mappa_envs.dsbench.tasks import load_tasks
from mappa_envs.errors import SandboxUnavailable
from mappa_envs.testing import expert_action

FIT = """
import bz2, pickle, joblib, pandas as pd
from sklearn.linear_model import LogisticRegression
train, test = pd.read_csv("train.csv"), pd.read_csv("test.csv")
X, T, y = train[["x"]], test[["x"]], train["kind"]
pd.to_pickle(X, "X_train.pkl")
pd.to_pickle(T, "X_test.pkl")
model = LogisticRegression().fit(X, y)
"""


@pytest.mark.parametrize(
    ("save", "remark"),
    [
        ('joblib.dump(model, "model.pkl")', NEEDS_JOBLIB),
        ('joblib.dump(model, "model.pkl", compress=3)', NEEDS_JOBLIB),
        ('pd.to_pickle(model, "model.pkl", compression="gzip")', NEEDS_JOBLIB),
        ('pd.to_pickle(model, "model.pkl")', ""),
        ('pickle.dump(model, open("model.pkl", "wb"), protocol=2)', ""),
    ],
)
def test_what_pickle_cannot_read_is_remarked(save: str, remark: str, task: TinyTask, bench: Bench) -> None:
    reads = 'print("read", joblib.load("model.pkl"), end="")\npickle.load(open("model.pkl", "rb"))'
    result, found = bench.look(task, [FIT + save, reads], ["model.pkl"])
    assert (found["model.pkl"].status, found["model.pkl"].problem) == ("valid", remark)
    assert result.stdout.startswith("read")
    assert result.ok is (remark == "")


@pytest.mark.slow
def test_the_analyst_is_told() -> None:
    tasks = [one for one in load_tasks("embedded", "train") if one.task_id == "penguin-sex"]
    env = DSBenchEnv(tasks, None, max_actions=(1, 1, 1), sandbox="namespace")
    try:
        env.reset(seed=0)
    except SandboxUnavailable as error:
        pytest.skip(f"no sandbox on this machine: {error}")
    env.step(expert_action("data_engineer_0", tasks[0]))
    model = expert_action("modeler_0", tasks[0])
    env.step(model.replace("pickle.dump(model, file)", "import joblib; joblib.dump(model, file)"))
    said = env.infos[env.agent_selection]["messages"][-1]["content"]
    assert NEEDS_JOBLIB in said
    score = env.episode.turns[-1].final_score
    assert score is not None
    assert score >= 8
    env.close()

"""DSBench: three roles on Kaggle-style modelling tasks; `mappa_envs.dsbench.env` is the page about it."""

from mappa_envs.dsbench.grading import Grade, TaskSpec, grade
from mappa_envs.dsbench.tasks import DSBenchTask, load_tasks

__all__ = ["DSBenchTask", "Grade", "TaskSpec", "grade", "load_tasks"]

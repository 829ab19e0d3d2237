"""DSBench: three roles on Kaggle-style modelling tasks. The environment's page is `mappa_envs.dsbench.env`."""

from mappa_envs.dsbench.grading import Grade, TaskSpec, grade
from mappa_envs.dsbench.tasks import DSBenchTask, load_tasks

__all__ = ["DSBenchTask", "Grade", "TaskSpec", "grade", "load_tasks"]

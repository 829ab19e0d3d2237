"""`report.html`: a run on one page that runs no script, rebuilt after each step and served by `view`.

Everything that an agent wrote is escaped and stripped of what could hide or move text (`text.py`), and the
page's content policy forbids scripts and every style but its own (`page.py`): it is safe to open whatever
agents do.
"""

from mappa_train.report.page import write_report
from mappa_train.report.reading import all_episodes, read_episodes

__all__ = ["all_episodes", "read_episodes", "write_report"]

"""The offline coach, read from the top:

coach.py       the scores of roles with required files
maths.py       the scores and blame of roles without: what they state, compute and box
maths_*.py     what a turn states and computes, where a plan departs from the problem, corrections
blame.py       who is at fault, and which earlier scores that changes
hindsight.py   a look back at a whole episode
outcomes.py    which outcomes are poor or disappoint
evidence.py    what the record of an action proves
faults.py      an action's mistakes: trail, remarks of the inspection, code
measured.py    mistakes that show in the files' measurements, whatever the code was
checks.py      common mistakes with data, found in what a program was read to do
loads.py       calls that would fail even if the team delivered all that it should
reader.py      reading a program without running it, with expressions, calls, row_by_row, values, vocabulary
corrections.py actions that would have worked
injection.py   words that are meant for the coach
"""

from mappa_envs.coach.rubric.coach import RubricCoach

__all__ = ["RubricCoach"]

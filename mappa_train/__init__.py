"""Trains teams of language-model agents; `python -m mappa_train --help`."""

import os

# How long the threads that PyTorch computes with stay awake for the next piece of work, in turns of a loop;
# read when PyTorch is imported. At GNU's default, some milliseconds, sampling nearly stands still when a
# sandbox needs a core, too; at none it is a fifth slower when nobody does (measured: benchmarks/rollout).
os.environ.setdefault("GOMP_SPINCOUNT", "5000")

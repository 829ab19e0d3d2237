"""How much a run in the sandbox costs, against a cold Python and against plain Docker."""

"""`python -m mappa_train`: see `--help`."""

import os
import sys

# Before any library is imported that reads them.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

if __name__ == "__main__":
    from mappa_train.cli import main

    sys.exit(main(sys.argv[1:]))

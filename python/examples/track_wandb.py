#!/usr/bin/env python3
"""Logs a run of Cleave to Weights & Biases (pip install wandb pyyaml).

    python3 track_wandb.py runs/RUN
    cleave-client train --config FILE --json-lines | python3 track_wandb.py -
"""

import os
import sys

import wandb
from tracked_run import artifacts, events, parameters


def main(source, lines=sys.stdin):
    run = None
    for kind, step, content in events(source, lines):
        if kind == "begin":
            name = os.path.basename(os.path.normpath(content))
            run = wandb.init(project=os.environ.get("WANDB_PROJECT", "cleave"), name=name, config=parameters(content))
            run.define_metric("train_step")
            run.define_metric("*", step_metric="train_step")
        elif kind in ("step", "epoch"):
            run.log({"train_step": step, **{f"{kind}/{key}": value for key, value in content.items()}})
        else:
            artifact = wandb.Artifact(run.name, type="model")
            for path in artifacts(content):
                (artifact.add_dir(path, os.path.basename(path)) if os.path.isdir(path) else artifact.add_file(path))
            run.log_artifact(artifact)
            run.finish(exit_code=0 if kind == "done" else 1)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

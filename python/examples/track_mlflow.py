#!/usr/bin/env python3
"""Logs a run of Cleave to MLflow (pip install mlflow pyyaml).

    python3 track_mlflow.py runs/RUN
    cleave-client train --config FILE --json-lines | python3 track_mlflow.py -
"""

import os
import sys

import mlflow
from tracked_run import artifacts, events, parameters


def main(source, lines=sys.stdin):
    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", "cleave"))
    for kind, step, content in events(source, lines):
        if kind == "begin":
            mlflow.start_run(run_name=os.path.basename(os.path.normpath(content)))
            for key, value in parameters(content).items():  # one by one: a batch has a maximum size
                mlflow.log_param(key, str(value)[:500])
        elif kind in ("step", "epoch"):
            mlflow.log_metrics({f"{kind}/{key}": value for key, value in content.items()}, step=step)
        else:
            for path in artifacts(content):
                (mlflow.log_artifacts(path, os.path.basename(path)) if os.path.isdir(path) else mlflow.log_artifact(path))
            mlflow.end_run("FINISHED" if kind == "done" else "FAILED")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])

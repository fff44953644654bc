"""Serves the chief of a job with parameter servers: the program of its workers and ps, without any model.

    TF_CONFIG=... python scripts/serve.py

What the chief trains is its own matter: this needs neither its script nor its data, so that the same
image serves any job. It ends with the job, with code 0 if the chief has finished. Settings such as
`--start_timeout` and `--devices` are flags, as everywhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from absl import app, flags
from absl import logging as absl_logging

import tfdist
from tfdist.combinations import is_server

FLAGS = flags.FLAGS

tfdist.flags.define()


def main(argv: Sequence[str]) -> int:
    """Serves; returns the exit code of a process that must not."""
    if not FLAGS["verbosity"].present:
        absl_logging.set_verbosity(absl_logging.WARNING)
    logging.getLogger("tfdist").setLevel(logging.INFO)
    try:
        cluster = tfdist.Cluster.resolve()
        if len(argv) > 1 or not is_server(cluster):
            raise refusal(argv, cluster)
        tfdist.create(tfdist.flags.config_from_flags())  # ends the process with the job
    except tfdist.TfdistError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    return 2


def refusal(argv: Sequence[str], cluster: tfdist.Cluster) -> tfdist.TfdistError:
    """Says why this process can't serve."""
    if len(argv) > 1:
        return tfdist.errors.ConfigError(
            tfdist.errors.explain(
                "This script takes flags only",
                received=" ".join(argv[1:]),
                source="the command line",
                fix="Write --name=value; --help lists the flags",
            )
        )
    return tfdist.errors.ClusterError(
        tfdist.errors.explain(
            "Only a worker or ps of a cluster with parameter servers serves",
            received=cluster.task_name,
            source=cluster.source,
            fix="Start the chief with its own script, such as scripts/train.py, and this one on the "
            "workers and ps",
        )
    )


if __name__ == "__main__":
    app.run(main)

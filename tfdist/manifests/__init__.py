"""Writes what a scheduler needs to run a script on a cluster: nothing of it has to be written by hand.

```text
job          the blueprint: script, settings, tasks and their roles
shell        bash that quotes safely
documents    YAML
slurm        an sbatch script
kubernetes   an Indexed Job with a headless Service, or a JobSet
compose      a compose file, for several containers on one machine
tpu          a script that queues for a TPU slice and trains on it
```

The settings travel as TFDIST_<FIELD> variables, so that no file has to. Who the tasks are is told in
the variables that `tfdist.cluster.resolvers` reads.
"""

from __future__ import annotations

from tfdist.manifests.compose import ComposeOptions, render_compose
from tfdist.manifests.job import Job
from tfdist.manifests.kubernetes import KubernetesOptions, render_kubernetes
from tfdist.manifests.slurm import SlurmOptions, render_slurm
from tfdist.manifests.tpu import TpuOptions, render_tpu

__all__ = [
    "ComposeOptions",
    "Job",
    "KubernetesOptions",
    "SlurmOptions",
    "TpuOptions",
    "render_compose",
    "render_kubernetes",
    "render_slurm",
    "render_tpu",
]

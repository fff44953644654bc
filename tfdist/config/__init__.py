"""The settings of a job: what there is, what each may be, and where each value came from.

fields     one setting: its type, limits and text form
groups     the nested groups of the Config
settings   the Config
layers     values from overrides, flags, a file and the environment, and their merging
files      YAML and JSON
"""

from __future__ import annotations

from tfdist.config.groups import Communication, Data, ParameterServer, Pipeline, Recovery
from tfdist.config.settings import DEFAULT_GLOBAL_BATCH_SIZE, STRATEGIES, Config, file_layer

__all__ = [
    "DEFAULT_GLOBAL_BATCH_SIZE",
    "STRATEGIES",
    "Communication",
    "Config",
    "Data",
    "ParameterServer",
    "Pipeline",
    "Recovery",
    "file_layer",
]

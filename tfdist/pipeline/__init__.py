"""Splits a Keras model into the stages of a pipeline, and plans their work.

    keras model -> graph -> costs -> partition -> stages (models of each part)
                                         |
                     schedule -> simulation -> drawing

Planning needs one device and trains nothing; `tfdist.split` does all of it.
"""

from __future__ import annotations

from tfdist.pipeline.partition import Crossing, Partition, StagePlan, Tie, split
from tfdist.pipeline.schedule import SCHEDULES, Schedule, Step, make_schedule, predicted_bubble
from tfdist.pipeline.simulation import PartTimes, Timeline, simulate
from tfdist.pipeline.stages import Port, StageModel, run_stages

__all__ = [
    "SCHEDULES",
    "Crossing",
    "PartTimes",
    "Partition",
    "Port",
    "Schedule",
    "StageModel",
    "StagePlan",
    "Step",
    "Tie",
    "Timeline",
    "make_schedule",
    "predicted_bubble",
    "run_stages",
    "simulate",
    "split",
]

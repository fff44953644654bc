"""Starts the processes of a job on this machine and looks after them.

`LaunchSpec` says what to start (a blueprint, frozen); `launch` starts it and returns the job's exit
code. One module per question:

    spec         what the user asked for, validated
    tasks        which processes that makes, and their names
    command      which program that is
    machine      how many cores and GPUs there are
    environment  what each worker finds in its environment
    ports        free ports, held until the workers use them
    workers      the running processes
    lines        a stream of bytes -> whole lines, progress bars settled
    console      one writer to the terminal, the prefix of each rank
    capture      what a worker writes: to the console, to its log file, to the tail for the report
    group        all workers of a job, from the first start to the last byte
    supervisor   who ended when, and who has to be ended: no processes, no clock
    coordinated  the same for a chief with workers and parameter servers
    failure      what an exit code means, and which of several failures came first
    report       what is said about a job that failed
    leftovers    every process of the job, also those that left their group
    guard        ends the job if the launcher itself is killed
    job          puts them together
"""

from __future__ import annotations

from tfdist.launcher.command import resolve_command
from tfdist.launcher.job import launch
from tfdist.launcher.spec import LaunchSpec

__all__ = ["LaunchSpec", "launch", "resolve_command"]

"""What is wrong with this machine, this environment, or this cluster, and what to do about it.

    facts       a snapshot of everything, as plain data; probes: gathers it, each with a deadline
    checks      what is judged by it: a table of (name, function of the facts -> finding or None)
    report      facts and findings as text and as JSON
    fleet       the same on several hosts, and in what they differ

TensorFlow is asked in a process of its own: one that crashes or hangs is a finding.
"""

from __future__ import annotations

from tfdist.doctor.checks import CHECKS, diagnose
from tfdist.doctor.facts import Facts
from tfdist.doctor.findings import Check, Finding
from tfdist.doctor.probes import gather

__all__ = ["CHECKS", "Check", "Facts", "Finding", "diagnose", "gather"]

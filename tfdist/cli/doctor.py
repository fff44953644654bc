"""Looks for what is wrong with this machine, its environment and its cluster; trains nothing.

    tfdist doctor                       what can be pasted into a bug report
    tfdist doctor --json
    tfdist doctor --hosts h1,h2         the same on each host over ssh, and in what they differ
    tfdist doctor --hostfile hosts.txt

Run it where and how the job is started: inside `srun`, in the container, with the same environment.
The exit code is 0 when nothing is wrong, 1 when something is, 2 when the options are.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from tfdist.errors import ConfigError, explain

NAME = "doctor"
HELP = "find out what is wrong with this machine or cluster"


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `tfdist doctor`."""
    parser.add_argument("--json", action="store_true", help="print facts and findings as JSON")
    hosts = parser.add_mutually_exclusive_group()
    hosts.add_argument("--hosts", metavar="H1,H2", help="look at these hosts, over ssh")
    hosts.add_argument("--hostfile", type=Path, metavar="FILE", help="look at the hosts of a file")
    parser.add_argument(
        "--python", metavar="PATH", help="the Python on the hosts (default: that of this command)"
    )
    parser.add_argument(
        "--ssh-port", type=int, metavar="P", help="the port of the hosts' sshd (default: ssh's own)"
    )
    parser.add_argument(
        "--ssh-arg",
        action="append",
        default=[],
        metavar="A",
        help="another argument for ssh, such as --ssh-arg=-iKEY; may be given several times",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=120.0,
        metavar="S",
        help="seconds for the import of TensorFlow, the slowest of the questions (default: 120)",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Prints the report; returns 0 when nothing is wrong.

    Raises:
        TfdistError: an option is wrong.
    """
    if not (math.isfinite(arguments.timeout) and arguments.timeout > 0):
        raise ConfigError(
            explain(
                "The time to wait must be a positive number of seconds",
                received=f"{arguments.timeout:g}",
                source="--timeout",
                fix="Such as --timeout=120",
            )
        )
    if arguments.hosts is not None or arguments.hostfile is not None:
        from tfdist.doctor import fleet
        from tfdist.launcher.ssh import SshOptions

        return fleet.report(
            fleet.hosts_of(arguments.hosts, arguments.hostfile),
            python=arguments.python or sys.executable,
            options=SshOptions(port=arguments.ssh_port, args=tuple(arguments.ssh_arg)),
            as_json=arguments.json,
            timeout=arguments.timeout,
        )
    from tfdist.doctor import diagnose, gather, report

    facts = gather(tensorflow_timeout=arguments.timeout)
    findings = diagnose(facts)
    print(report.as_json(facts, findings) if arguments.json else report.as_text(facts, findings))
    return 1 if findings else 0

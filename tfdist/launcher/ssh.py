"""The system's ssh: how it is called, and what its failures mean.

ssh is never asked for a password, and what is secret never stands on its command line. Host names,
users, keys, ports and jump hosts are those of `~/.ssh/config`, as for anybody's `ssh HOST`.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfdist.cluster.hosts import Host
from tfdist.errors import LaunchError, explain

__all__ = ["Reply", "SshOptions", "run_on_hosts", "why_ssh_failed"]

# What ssh itself returns when it has no connection (or lost it); a command may return it too.
SSH_FAILED = 255
_LAST_LINES = 5


@dataclass(frozen=True)
class SshOptions:
    """How to call ssh.

    Attributes:
        port: the port of every host's sshd; None leaves that to `~/.ssh/config`.
        args: more arguments for ssh, such as ("-i", "key"), which win over those given here.
        connect_timeout: seconds for a connection to be made.
        alive_timeout: seconds without an answer after which ssh gives a connection up.
    """

    port: int | None = None
    args: tuple[str, ...] = ()
    connect_timeout: float = 10.0
    alive_timeout: float = 30.0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            LaunchError: if a field has a value that ssh can't take.
        """
        if self.port is not None and not 1 <= self.port <= 65535:
            raise LaunchError(
                explain(
                    "A port is a number from 1 to 65535",
                    received=self.port,
                    source="--ssh-port",
                    fix="Use the port that the hosts' sshd listens at, or leave the option out",
                )
            )
        for name, value in (
            ("--connect-timeout", self.connect_timeout),
            ("--host-timeout", self.alive_timeout),
        ):
            if not 1 <= value < float("inf"):
                raise LaunchError(
                    explain(
                        "A time to wait must be a number of seconds, 1 or more",
                        received=value,
                        source=name,
                        fix="Use a number such as 30",
                    )
                )

    def command(self, host: Host, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` on a host.

        The remote shell gets one quoted line; ssh would otherwise join the words with spaces.
        """
        beat = max(1, int(self.alive_timeout / 3))
        port = self.port if self.port is not None else host.port
        return [
            ssh_program(),
            "-T",  # no terminal
            "-x",  # no X11
            *("-o", "BatchMode=yes"),  # the first of several values counts: never a password
            *self.args,
            *("-o", f"ConnectTimeout={max(1, int(self.connect_timeout))}"),
            *("-o", f"ServerAliveInterval={beat}"),
            *("-o", "ServerAliveCountMax=3"),
            *("-o", "ClearAllForwardings=yes"),
            *("-o", "ControlMaster=no"),
            *(("-p", str(port)) if port is not None else ()),
            *(("-l", host.user) if host.user else ()),
            "--",
            host.name,
            shlex.join(argv),
        ]


@dataclass(frozen=True)
class Reply:
    """What a command on a host came to.

    Attributes:
        host: where it ran.
        returncode: its exit code; None if it did not end in time.
        stdout: what it wrote.
        stderr: what it, or ssh, wrote.
        sent: when it was started here, by this machine's clock (`time.time`).
        answered: when it had ended.
        problem: why there is no answer of the command's; empty if there is one.
    """

    host: Host
    returncode: int | None
    stdout: str
    stderr: str
    sent: float
    answered: float
    problem: str = ""


def ssh_program() -> str:
    """Where ssh is.

    Raises:
        LaunchError: it is not installed.
    """
    found = shutil.which("ssh")
    if found is None:
        raise LaunchError(
            explain(
                "Other hosts are reached with ssh, and this machine has none",
                fix="Install OpenSSH's client (Debian: apt-get install openssh-client)",
            )
        )
    return found


def run_on_hosts(
    hosts: Sequence[Host],
    argv: Sequence[str],
    stdin: bytes = b"",
    timeout: float = 60.0,
    options: SshOptions | None = None,
) -> list[Reply]:
    """Runs a command on all hosts at once, and waits for it.

    Args:
        hosts: where.
        argv: the program and its arguments, quoted for the remote shell. Nothing secret: it can be
            seen there in the list of processes.
        stdin: what the command may read; the place for what is secret.
        timeout: seconds until a host that has not answered is given up.
        options: how to call ssh.

    Returns:
        A reply for each host, in their order.

    Raises:
        LaunchError: ssh is not installed.
    """
    settings = options or SshOptions()
    ssh_program()
    if not hosts:
        return []

    def ask(host: Host) -> Reply:
        sent = time.time()
        try:
            done = subprocess.run(
                settings.command(host, argv),
                input=stdin,
                capture_output=True,
                timeout=timeout,
                start_new_session=True,  # no terminal to ask anything at
            )
        except subprocess.TimeoutExpired as error:
            out, err = (_text(part) for part in (error.stdout, error.stderr))
            problem = f"no answer within {timeout:g} s"
            return Reply(host, None, out, err, sent, time.time(), problem)
        out, err = _text(done.stdout), _text(done.stderr)
        problem = why_ssh_failed(host, err) if done.returncode == SSH_FAILED and not out else ""
        return Reply(host, done.returncode, out, err, sent, time.time(), problem)

    with ThreadPoolExecutor(max_workers=min(len(hosts), 64)) as threads:
        return list(threads.map(ask, hosts))


_REASONS = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is another one than the one known. If the host was set up anew, forget the old "
        "key: ssh-keygen -R {host}",
    ),
    (
        r"Host key verification failed",
        "its host key is not known here. Connect once by hand and compare it: ssh {host}",
    ),
    (
        r"Could not resolve hostname",
        "its name can't be resolved. Check the spelling, /etc/hosts, DNS and ~/.ssh/config",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "it refuses the login. Nobody is asked for a password: set up a key (ssh-copy-id {host}) and "
        "check that `ssh -o BatchMode=yes {host} true` works",
    ),
    (
        r"Connection refused",
        "no sshd listens there. Start it, or name its port with --ssh-port or in ~/.ssh/config",
    ),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "it does not answer. Check that it is up and that no firewall is between",
    ),
)


def why_ssh_failed(host: Host, stderr: str) -> str:
    """What a failure of ssh's means, and what to do.

    Args:
        host: the host.
        stderr: what ssh wrote.

    Returns:
        A sentence, with the end of ssh's own words.
    """
    words = _last_lines(stderr)
    for pattern, reason in _REASONS:
        if re.search(pattern, stderr):
            return f"{reason.format(host=host.login)} (ssh: {words})"
    return f"ssh failed ({words or 'without a word'})"


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" @\r\t")]
    return "; ".join(lines[-_LAST_LINES:])


def _text(data: bytes | None) -> str:
    return (data or b"").decode("utf-8", "replace")

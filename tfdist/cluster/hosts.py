"""Lists of hosts with slots, as `--hosts`, TFDIST_HOSTS and hostfiles write them: pure data.

```text
h1:4,h2:4                 --hosts and TFDIST_HOSTS, as Horovod's -H; a host alone has one slot
me@h1:4,[fd00::1]:4       with the user to log in as, and IPv6 addresses in brackets
h1 slots=4  # comment     a hostfile of Horovod, Open MPI or DeepSpeed, a host a line
h1:4                      a hostfile of MPICH
h1@h2:0,2                 DeepSpeed's include and exclude: hosts, or some of their slots
```
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tfdist.errors import ClusterError, explain

__all__ = ["Host", "parse_hostfile", "parse_hosts", "select"]

_NAME = re.compile(r"\[[0-9A-Fa-f:.%\w]+\]|[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?")
_MOST_SLOTS = 1024  # More are a slip of the keyboard, such as a port in the place of the slots.
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\\-]*[$]?")
_SLOTS_WORDS = ("slots", "max_slots", "max-slots", "port", "user")


@dataclass(frozen=True)
class Host:
    """A host and the slots on it, each of which takes one worker.

    Attributes:
        name: host name or address; an IPv6 address without its brackets.
        slots: numbers of the slots, which are also those of its GPUs.
        user: whom to log in as; empty leaves that to ssh.
        port: where its sshd listens; None leaves that to ssh.
    """

    name: str
    slots: tuple[int, ...] = (0,)
    user: str = ""
    port: int | None = None

    def __str__(self) -> str:
        """The host as `--hosts` would say it."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        return f"{self.user}{'@' if self.user else ''}{name}:{len(self.slots)}"

    @property
    def login(self) -> str:
        """The host as ssh's own command line says it."""
        return f"{self.user}@{self.name}" if self.user else self.name


def parse_hosts(text: str, source: str = "--hosts") -> tuple[Host, ...]:
    """Reads "h1:4,h2:4".

    Args:
        text: hosts separated by commas, each with its number of slots after a colon (default 1).
        source: where the text came from, for messages.

    Returns:
        The hosts, in the order given.

    Raises:
        ClusterError: nothing is there, a name or a number can't be one, or a host is named twice.
    """
    words = [word.strip() for word in text.split(",")]
    if not any(words):
        raise _error("The list of hosts is empty", repr(text), source)
    return _distinct((_host(word, source) for word in words), source)


def parse_hostfile(text: str, source: str = "--hostfile") -> tuple[Host, ...]:
    """Reads the text of a hostfile: a host a line, with `slots=N` or `:N`, and comments after #.

    A host on several lines has the slots of all of them, as the schedulers' node files mean it.

    Args:
        text: the content of the file.
        source: its name, for messages.

    Returns:
        The hosts, in the order in which they come first.

    Raises:
        ClusterError: no host is there, or a line can't be read; the message has its number.
    """
    found: dict[str, Host] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        host = _line(words, line.strip(), f"{source}, line {number}")
        before = found.get(host.name)
        if before is not None:
            count = len(before.slots) + len(host.slots)
            host = replace(
                host,
                slots=tuple(range(count)),
                user=host.user or before.user,
                port=host.port or before.port,
            )
        found[host.name] = host
    if not found:
        raise _error("The hostfile names no host", f"{len(text.splitlines())} lines", source)
    return tuple(found.values())


def select(
    hosts: Sequence[Host], include: str = "", exclude: str = "", source: str = "--hosts"
) -> tuple[Host, ...]:
    """Keeps the hosts and slots that are included, or those that are not excluded.

    Args:
        hosts: the hosts to choose from.
        include: such as "h1@h2:0,2" (all of h1, two slots of h2); empty keeps all.
        exclude: the same for what is left out; only one of the two may be given.
        source: where the hosts came from, for messages.

    Returns:
        The hosts that are left, in their own order.

    Raises:
        ClusterError: both are given, a host or slot is not among `hosts`, or nothing is left.
    """
    if include and exclude:
        raise ClusterError(
            explain(
                "Hosts are either included or excluded",
                received=f"include={include!r}, exclude={exclude!r}",
                fix="Give one of --include and --exclude",
            )
        )
    if not include and not exclude:
        return tuple(hosts)
    option, text = ("--include", include) if include else ("--exclude", exclude)
    named = _selection(text, option, hosts, source)
    kept = []
    for host in hosts:
        chosen = named.get(host.name, ())
        wanted = [slot for slot in host.slots if (slot in chosen) == bool(include)]
        if wanted:
            kept.append(replace(host, slots=tuple(wanted)))
    if not kept:
        raise ClusterError(
            explain("No host is left", received=text, source=option, fix="Exclude fewer hosts")
        )
    return tuple(kept)


def _selection(
    text: str, option: str, hosts: Sequence[Host], source: str
) -> dict[str, tuple[int, ...]]:
    known = {host.name: host.slots for host in hosts}
    named: dict[str, tuple[int, ...]] = {}
    for part in text.split("@"):
        name, colon, listed = part.strip().partition(":")
        if name not in known:
            raise _error(
                f"A host of {option} is not among the hosts of {source}",
                repr(name),
                option,
                f"Name some of: {', '.join(known)}",
            )
        numbers = [number.strip() for number in listed.split(",")] if colon else []
        for number in numbers:
            if not (number.isascii() and number.isdecimal()) or int(number) not in known[name]:
                have = ", ".join(map(str, known[name]))
                raise _error(
                    f"A slot of {option} is not one of the host's",
                    f"{name}:{number}",
                    option,
                    f"{name} has the slots {have}",
                )
        chosen = tuple(int(number) for number in numbers) if colon else known[name]
        named[name] = (*named.get(name, ()), *chosen)
    return named


def _host(word: str, source: str) -> Host:
    whole = word
    user, at, word = word.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise _error("A host has a user that can't be one", repr(whole), source)
    name, colon, slots = word, "", ""
    if word.startswith("["):
        name, bracket, slots = word.partition("]")
        name, colon, slots = name + bracket, slots[:1], slots[1:]
    elif word.count(":") > 1:
        raise _error(
            "An IPv6 address needs brackets, so that its slots can follow",
            repr(whole),
            source,
            f"Write [{word}]:1",
        )
    else:
        name, colon, slots = word.partition(":")
    if not _NAME.fullmatch(name):
        raise _error("A host has a name that can't be one", repr(whole), source)
    count = _count(slots, whole, source) if colon else 1
    return Host(name.strip("[]"), tuple(range(count)), user)


def _line(words: list[str], line: str, where: str) -> Host:
    """One line of a hostfile: the host, then `slots=N` and what other launchers know."""
    host = _host(words[0], where)
    count: int | None = None
    for word in words[1:]:
        name, equals, value = word.partition("=")
        if not equals or name not in _SLOTS_WORDS:
            raise _error(
                "A line of a hostfile is `HOST slots=N`", repr(line), where, "Remove " + repr(word)
            )
        if name == "slots":
            count = _count(value, line, where)
        elif name == "user":
            if not _USER.fullmatch(value):
                raise _error("A host has a user that can't be one", repr(line), where)
            host = replace(host, user=value)
        elif name == "port":
            host = replace(host, port=_port(value, line, where))
    return host if count is None else replace(host, slots=tuple(range(count)))


def _port(text: str, line: str, where: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= 65535:
        raise _error(
            "The port of a host's sshd must be from 1 to 65535",
            repr(line),
            where,
            "Such as port=22",
        )
    return int(text)


def _count(text: str, word: str, source: str) -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= _MOST_SLOTS:
        raise _error(
            f"The number of slots of a host must be from 1 to {_MOST_SLOTS}", repr(word), source
        )
    return int(text)


def _distinct(hosts: Iterable[Host], source: str) -> tuple[Host, ...]:
    found: dict[str, Host] = {}
    for host in hosts:
        if host.name in found:
            raise _error(
                "A host is named twice",
                f"{found[host.name]} and {host}",
                source,
                f"Give its slots together: {host.name}:"
                f"{len(found[host.name].slots) + len(host.slots)}",
            )
        found[host.name] = host
    return tuple(found.values())


def _error(
    problem: str, received: str, source: str, fix: str = "Such as h1:4,h2:4"
) -> ClusterError:
    return ClusterError(explain(problem, received=received, source=source, fix=fix))

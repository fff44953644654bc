"""The blueprint of a job: what runs, with which settings, in how many tasks of which roles."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from tfdist.config import Config
from tfdist.errors import ConfigError, explain

__all__ = ["CLUSTER_VARIABLES", "Job", "check_positive", "refuse"]

_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
CLUSTER_VARIABLES = (
    "TF_CONFIG",
    "TFDIST_HOSTS",
    "TFDIST_RANK",
    "TFDIST_WORLD_SIZE",
    "TFDIST_LOCAL_RANK",
    "TFDIST_ROLES",
    "TFDIST_SERVICE",
)
_ONE_PROCESS = ("single", "mirrored", "pipeline", "tpu")


@dataclass(frozen=True)
class Job:
    """What to run.

    Attributes:
        script: path of the Python script, as the cluster sees it.
        arguments: those of the script.
        config: the settings; those that were given travel with the job.
        workers: tasks that train.
        ps: parameter servers; with any, one more task is the chief, which coordinates.
        name: of the job; made from the script's when empty.
        env: more variables for every task.
        python: the interpreter to run the script with.
    """

    script: str
    arguments: tuple[str, ...] = ()
    config: Config = field(default_factory=Config)
    workers: int = 1
    ps: int = 0
    name: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    python: str = "python"

    def __post_init__(self) -> None:
        """Checks the job, and gives it a name.

        Raises:
            ConfigError: a value can't be used, or the strategy contradicts the tasks.
        """
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.script))
        if not _NAME.fullmatch(self.name):
            raise refuse(
                "The job's name must be lower-case letters, digits and hyphens, beginning with a "
                "letter, of at most 40 characters",
                repr(self.name),
                "--name",
                "Such as --name=train",
            )
        check_positive(self.workers, "--workers")
        if self.ps < 0:
            raise refuse("The number of parameter servers can't be negative", self.ps, "--ps")
        for name, value in self.env.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value or name in CLUSTER_VARIABLES:
                raise refuse(
                    "A variable is NAME=VALUE, and none of those that make up the cluster",
                    f"{name}={value}",
                    "--env",
                )
        if any("\0" in word for word in (self.python, self.script, *self.arguments)):
            raise refuse("A command line can't hold a null character", repr(self.command), "SCRIPT")
        self._check_strategy()

    def _check_strategy(self) -> None:
        strategy, origin = self.config.strategy, self.config.origin("strategy")
        if self.ps and strategy not in ("auto", "parameter_server"):
            raise refuse(
                f"Strategy '{strategy}' has no parameter servers",
                f"strategy={strategy}, --ps={self.ps}",
                origin,
                "Leave --ps out",
            )
        if strategy == "parameter_server" and not self.ps:
            raise refuse(
                "Strategy 'parameter_server' needs parameter servers",
                f"strategy={strategy}, --ps=0",
                origin,
                "Add --ps=1",
            )
        if strategy in _ONE_PROCESS and self.workers > 1:
            raise refuse(
                f"Strategy '{strategy}' stays in one process",
                f"strategy={strategy}, {self.workers} workers",
                origin,
                "Use strategy: multi_worker, or one worker",
            )

    @property
    def command(self) -> tuple[str, ...]:
        """The words of the command that each task runs."""
        return (self.python, self.script, *self.arguments)

    @property
    def roles(self) -> dict[str, int]:
        """The number of tasks of each role, in the order of their ranks."""
        if not self.ps:
            return {"worker": self.workers}
        return {"chief": 1, "worker": self.workers, "ps": self.ps}

    @property
    def tasks(self) -> int:
        """All tasks."""
        return sum(self.roles.values())

    def variables(self) -> dict[str, str]:
        """The settings that were given, as TFDIST_<FIELD>, the roles, and `env`.

        Raises:
            ConfigError: a setting would not come out of the environment as it went in.
        """
        given = {name: item.value for name, item in self.config.given().items()}
        variables = {f"TFDIST_{name.upper()}": _text(value) for name, value in given.items()}
        read = Config.resolve(environ=variables).flat()
        changed = [name for name, value in given.items() if read[name] != value]
        if changed:
            raise refuse(
                "A setting can't be passed on in the environment",
                ", ".join(f"{name}={given[name]!r}" for name in changed),
                self.config.origin(changed[0]),
                "Set it in the script, or by a flag of the script",
            )
        if self.ps:
            variables["TFDIST_ROLES"] = ",".join(f"{role}={n}" for role, n in self.roles.items())
        return {**variables, **self.env}


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _name_of(script: str) -> str:
    stem = re.sub(r"[^a-z0-9]+", "-", PurePath(script).stem.lower()).strip("-")[:40].strip("-")
    return stem if stem[:1].isalpha() else f"job-{stem}".strip("-")[:40].strip("-")


def refuse(
    problem: str, received: Any, source: str, fix: str = "See tfdist manifest --help"
) -> ConfigError:
    """The error for an option that can't be used."""
    return ConfigError(explain(problem, received=received, source=source, fix=fix))


def check_positive(value: int | None, option: str) -> None:
    """Refuses a number below 1; None means that the option was not given.

    Raises:
        ConfigError: naming the option.
    """
    if value is not None and value < 1:
        raise refuse(f"{option} must be at least 1", value, option, "Use 1 or more")

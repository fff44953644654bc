"""Every Config field as an absl flag, for scripts.

```python
from absl import app, flags
import tfdist

tfdist.flags.define()

def main(_):
    runtime = tfdist.create(tfdist.flags.config_from_flags())
```

A flag that is not given leaves the setting to the file named by `--config`, then to the
environment, then to the default.
"""

from __future__ import annotations

import sys
from typing import Any

from absl import flags as absl_flags

from tfdist.config import Config, file_layer
from tfdist.config import layers as config_layers
from tfdist.config.layers import Layer, Setting, Slot
from tfdist.errors import ConfigError, explain

__all__ = ["config_from_flags", "define"]

_MODULE = __name__
_CONFIG = "config"


def define(flag_values: absl_flags.FlagValues = absl_flags.FLAGS) -> None:
    """Defines a flag for each Config field, and `--config` for a file of settings.

    Calling it again does nothing. A flag of the same name that the script has defined itself is
    an error of absl, as for any two flags.

    Args:
        flag_values: where to define them.
    """
    mine = {flag.name for flag in flag_values.flags_by_module_dict().get(_MODULE, ())}
    if _CONFIG not in mine:
        absl_flags.DEFINE_string(
            _CONFIG,
            None,
            "YAML or JSON file of settings; flags override it",
            flag_values=flag_values,
            module_name=_MODULE,
        )
    for slot in config_layers.slots(Config).values():
        if slot.name not in mine and not _is_absls_own(slot.name, flag_values):
            _define_one(slot, flag_values)
    # `--help` shows a script's own flags only; these belong to whoever asked for them.
    caller = sys._getframe(1).f_globals.get("__name__", "__main__")
    caller = sys.argv[0] if caller == "__main__" else caller
    for flag in flag_values.flags_by_module_dict()[_MODULE]:
        flag_values.register_key_flag_for_module(caller, flag)


def _is_absls_own(name: str, flag_values: absl_flags.FlagValues) -> bool:
    # absl itself has a --log_dir, for log files that only `use_absl_log_file` writes. The Config's
    # field shares that flag: two could not have one name, and both mean the logs' directory.
    return name in flag_values and flag_values.find_module_defining_flag(name) == "absl.logging"


def _define_one(slot: Slot, flag_values: absl_flags.FlagValues) -> None:
    kind = slot.kind
    default = "" if slot.default is None else f" [default: {slot.default}]"
    where: dict[str, Any] = {"flag_values": flag_values, "module_name": _MODULE}
    if kind.base == "bool":
        absl_flags.DEFINE_bool(slot.name, None, slot.help + default, **where)
    elif kind.choices and kind.base == "str":
        absl_flags.DEFINE_enum(slot.name, None, kind.choices, slot.help + default, **where)
    else:  # Text, so that the Config words the errors, `none` can be said, and -1 is no trouble.
        limits = "" if kind.base in ("path", "str", "devices") else f" ({kind.describe()})"
        absl_flags.DEFINE_string(slot.name, None, slot.help + limits + default, **where)


def config_from_flags(flag_values: absl_flags.FlagValues = absl_flags.FLAGS) -> Config:
    """Builds the Config from the flags given, the `--config` file, and the environment.

    Args:
        flag_values: where `define` put the flags; they must have been parsed.

    Returns:
        The Config; `explain()` shows where each value came from.

    Raises:
        ConfigError: a value is wrong, the file can't be read, or the flags are not defined or not
            parsed yet.
    """
    if _CONFIG not in flag_values or not flag_values.is_parsed():
        raise ConfigError(
            explain(
                "The flags are not defined and parsed yet",
                fix="Call tfdist.flags.define() at import time, and config_from_flags() "
                "inside the main function that absl's app.run starts",
            )
        )
    path = flag_values[_CONFIG].value
    return Config.merge(file_layer(path) if path else {}, _flag_layer(flag_values))


def _flag_layer(flag_values: absl_flags.FlagValues) -> Layer:
    layer: Layer = {}
    for name, slot in config_layers.slots(Config).items():
        flag = flag_values[name]
        value = flag.value
        if value is None or (value == "" and not flag.present):
            continue
        origin = f"--{name}"
        read = slot.kind.parse if isinstance(value, str) else slot.kind.check
        layer[name] = Setting(read(name, value, origin), origin)
    return layer

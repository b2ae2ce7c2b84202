"""The environment variables of Accelerate's launcher, and the settings that they stand for."""

from __future__ import annotations

from collections.abc import Mapping

from shardproof_reference.errors import PluginError
from shardproof_reference.fsdp._reading import READERS, SIZE, version

_PREFIX = "FSDP_"
# Which torch itself reads.
_TORCHS = ("USE_FULL_PREC_IN_EVAL", "USE_UNSAFE_SETATTR", "SKIP_WRITEBACK_CHECK")
_SETTING = {
    "VERSION": "fsdp_version",
    "SHARDING_STRATEGY": "sharding_strategy",
    "RESHARD_AFTER_FORWARD": "reshard_after_forward",
    "OFFLOAD_PARAMS": "cpu_offload",
    "MIN_NUM_PARAMS": "min_num_params",
    "AUTO_WRAP_POLICY": "auto_wrap_policy",
    "TRANSFORMER_CLS_TO_WRAP": "transformer_cls_names_to_wrap",
    "BACKWARD_PREFETCH": "backward_prefetch",
    "STATE_DICT_TYPE": "state_dict_type",
    "FORWARD_PREFETCH": "forward_prefetch",
    "USE_ORIG_PARAMS": "use_orig_params",
    "CPU_RAM_EFFICIENT_LOADING": "cpu_ram_efficient_loading",
    "SYNC_MODULE_STATES": "sync_module_states",
    "ACTIVATION_CHECKPOINTING": "activation_checkpointing",
    "ACTIVATION_CHECKPOINTING_OFFLOAD": "activation_checkpointing_offload",
    "IGNORED_MODULES": "ignored_modules",
}
# In which versions it is read what the launcher writes in both: a variable, or one of its values.
_VERSIONS: dict[str | tuple[str, str], tuple[int, ...]] = {
    "sharding_strategy": (1,),
    "backward_prefetch": (1,),
    "forward_prefetch": (1,),
    "use_orig_params": (1,),
    ("reshard_after_forward", "true"): (2,),
    ("reshard_after_forward", "false"): (2,),
}


def read(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that some variables stand for.

    Raises:
        PluginError: Naming the variable.
    """
    given = {
        name: text.strip()
        for name, text in environ.items()
        if name.startswith(_PREFIX) and name.removeprefix(_PREFIX) not in _TORCHS and text.strip()
    }
    written = given.get(_PREFIX + "VERSION", "1")
    _try(_PREFIX + "VERSION", "fsdp_version", written, 1)
    fsdp_version = version(written)
    settings: dict[str, str] = {}
    for name, text in given.items():
        setting = _SETTING.get(name.removeprefix(_PREFIX))
        if setting is None:
            known = ", ".join(_PREFIX + one for one in _SETTING)
            raise PluginError(f"no setting is read from the variable {name}; there are {known}")
        if fsdp_version in _VERSIONS.get((setting, text.lower()), _VERSIONS.get(setting, (1, 2))):
            _try(name, setting, text, fsdp_version)
            settings[setting] = text
    if settings.get("auto_wrap_policy", "").lower() != SIZE:
        settings.pop("min_num_params", None)  # written whatever the policy
    return settings


def named(error: PluginError, environ: Mapping[str, str]) -> PluginError:
    """Return an error of several settings together with the variables that they come from."""
    variables = [
        f"{_PREFIX}{name}={environ[_PREFIX + name]}"
        for name, setting in _SETTING.items()
        if setting in str(error) and _PREFIX + name in environ
    ]
    return PluginError(f"{error} (from {', '.join(variables)})")


def _try(name: str, setting: str, text: str, fsdp_version: int) -> None:
    try:
        READERS[setting](text, fsdp_version)
    except PluginError as error:
        raise PluginError(f"{name}: {error}") from error

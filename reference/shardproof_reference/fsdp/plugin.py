"""`FullyShardedDataParallelPlugin`: how a model is to be sharded, checked when it is said.

Names and defaults are those of Accelerate's plugin. It differs where that one goes on in silence: a
value that has no effect, or that two settings contradict each other in, is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    OptimStateDictConfig,
    ShardingStrategy,
    StateDictConfig,
    StateDictType,
)

from shardproof_reference.errors import PluginError
from shardproof_reference.fsdp import _describe, _environment, _reading, _rules, _state_dict, _wrap
from shardproof_reference.fsdp._describe import Description
from shardproof_reference.fsdp._reading import READERS

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def _known(name: str) -> None:
    """Refuse the name of a setting that there isn't."""
    if name not in READERS:
        close = get_close_matches(name, READERS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(READERS)}"
        raise PluginError(f"there is no setting {name!r}; {hint}")


@dataclass(eq=False)
class FullyShardedDataParallelPlugin:
    """Settings of FSDP1 (`FullyShardedDataParallel`) or FSDP2 (`fully_shard`).

    Each takes a string in any case, a number as text, the enum or the object, and holds the object
    then. A setting is checked when it is assigned, too. Nothing outside of the plugin is changed,
    and neither an accelerator nor a process group is needed before `wrap`.

    Args:
        fsdp_version: 1, or 2 for `fully_shard`.
        sharding_strategy: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2;
            version 1 only.
        reshard_after_forward: In version 2 True, False, or to how many ranks; default True. In
            version 1 another name of `sharding_strategy`, as in Accelerate.
        backward_prefetch: NO_PREFETCH (None), BACKWARD_PRE or BACKWARD_POST; version 1 only.
        mixed_precision_policy: None, fp32, fp16, bf16, a dict of dtypes, or the version's policy.
        auto_wrap_policy: `transformer_based_wrap`, `size_based_wrap`, `no_wrap` (None), or a
            function of `module`, `recurse` and `nonwrapped_numel`.
        cpu_offload: Whether shards live in CPU memory, or the version's object.
        ignored_modules: Modules that stay whole on every rank, or a regular expression that their
            names match in full. Their gradients are each rank's own.
        state_dict_type: FULL_STATE_DICT (default of version 1), SHARDED_STATE_DICT (of 2), or
            LOCAL_STATE_DICT, which only version 1 has.
        state_dict_config: Of that type; decided by it where it is None.
        optim_state_dict_config: The same for the optimizer.
        limit_all_gathers: Whether the CPU waits before too many all-gathers; version 1 only.
        use_orig_params: Whether the optimizer gets the original parameters; version 2 always does.
        param_init_fn: Puts what a module itself holds on the meta device onto the real one, without
            its children. Default with `sync_module_states`: empty tensors, which rank 0's values
            fill.
        sync_module_states: Whether all ranks get rank 0's parameters and buffers.
        forward_prefetch: Whether the next all-gather begins during a forward; version 1 only.
        activation_checkpointing: Whether each unit's activations are computed again in backward.
        activation_checkpointing_offload: And its input is kept in CPU memory; version 2 only.
        cpu_ram_efficient_loading: Whether only rank 0 holds the model before it is sharded, and the
            others have it on the meta device. Forces `sync_module_states`.
        transformer_cls_names_to_wrap: Classes that `transformer_based_wrap` makes units of; default
            what the model names in `_no_split_modules`.
        min_num_params: From how many parameters on `size_based_wrap` makes a unit.

    Raises:
        PluginError: A value that can't be, or two that can't work together.
    """

    fsdp_version: int = 1
    sharding_strategy: str | int | ShardingStrategy | None = None
    reshard_after_forward: str | int | bool | None = None
    backward_prefetch: str | int | BackwardPrefetch | None = None
    mixed_precision_policy: (
        str | Mapping[str, Any] | MixedPrecision | MixedPrecisionPolicy | None
    ) = None
    auto_wrap_policy: str | Callable[..., Any] | None = None
    cpu_offload: str | bool | CPUOffload | OffloadPolicy | CPUOffloadPolicy = False
    ignored_modules: str | Iterable[nn.Module] | None = None
    state_dict_type: str | int | StateDictType | None = None
    state_dict_config: StateDictConfig | None = None
    optim_state_dict_config: OptimStateDictConfig | None = None
    limit_all_gathers: str | bool = True
    use_orig_params: str | bool | None = None
    param_init_fn: Callable[[nn.Module], None] | None = None
    sync_module_states: str | bool | None = None
    forward_prefetch: str | bool | None = None
    activation_checkpointing: str | bool = False
    activation_checkpointing_offload: str | bool = False
    cpu_ram_efficient_loading: str | bool | None = None
    transformer_cls_names_to_wrap: str | Iterable[str] | None = None
    min_num_params: str | int | None = None

    def __new__(cls, *args: object, **settings: object) -> FullyShardedDataParallelPlugin:
        """Refuse a setting that there isn't, before any is read."""
        if cls.__init__ is FullyShardedDataParallelPlugin.__init__:
            for name in settings:
                _known(name)
        return super().__new__(cls)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> FullyShardedDataParallelPlugin:
        """Build the plugin from the `FSDP_*` variables that `accelerate launch` writes.

        It writes all of them, so what the version has not is left out.

        Args:
            environ: `os.environ`, say.

        Raises:
            PluginError: A variable that there isn't, or that holds what can't be.
        """
        settings: dict[str, Any] = dict(_environment.read(environ))
        try:
            return cls(**settings)
        except PluginError as error:
            raise _environment.named(error, environ) from error

    def __post_init__(self) -> None:
        self._settle({name: getattr(self, name) for name in READERS})

    def __setattr__(self, name: str, value: object) -> None:
        """Check a setting that is assigned together with the others.

        Raises:
            PluginError: As when the plugin is built; nothing is changed then.
        """
        own = type(self) is not FullyShardedDataParallelPlugin and name not in READERS
        if own or "_given" not in self.__dict__:
            super().__setattr__(name, value)
        elif name == "state_dict_type":
            self.set_state_dict_type(value)  # type: ignore[arg-type]
        else:
            _known(name)
            self._settle({**self.__dict__["_given"], name: value})

    def set_state_dict_type(self, state_dict_type: str | int | StateDictType) -> None:
        """Change the state-dict type, and both configs with it; the same type keeps its configs.

        Raises:
            PluginError: A type that there isn't, or that can't work with the other settings.
        """
        given = {**self.__dict__["_given"], "state_dict_type": state_dict_type}
        if _state_dict.read(state_dict_type, self.fsdp_version) is not self.state_dict_type:
            given.update(state_dict_config=None, optim_state_dict_config=None)
        self._settle(given)

    def _settle(self, given: Mapping[str, Any]) -> None:
        """Read all settings, check them together, and take them over.

        What was given is kept: another version would read it in another way.
        """
        given = dict(given)
        version = _reading.version(given["fsdp_version"])
        if version == 1:
            given = _reading.strategy_of_either(given)
        settings = {name: read(given[name], version) for name, read in READERS.items()}
        configs = _state_dict.configs(
            settings["state_dict_type"],
            settings["state_dict_config"],
            settings["optim_state_dict_config"],
        )
        settings["state_dict_config"], settings["optim_state_dict_config"] = configs
        _rules.check(settings)
        if settings["cpu_ram_efficient_loading"] and not settings["sync_module_states"]:
            warnings.warn(
                "cpu_ram_efficient_loading gives the other ranks what rank 0 has loaded: "
                "sync_module_states is switched on",
                stacklevel=4,  # where the plugin is built
            )
            given["sync_module_states"] = settings["sync_module_states"] = True
        self.__dict__.update(settings, _given=given)

    def wrap(self, model: nn.Module, device_mesh: DeviceMesh | None = None) -> nn.Module:
        """Shard a model: each unit of the policy, and the rest; collective.

        Args:
            model: An unwrapped model, on the CPU, the rank's device, or the meta device.
            device_mesh: 1-D (shard) or 2-D (replicate, shard) with named dimensions; HYBRID needs a
                2-D one. None is all ranks in one dimension.

        Returns:
            The wrapped model: of version 1 a new module, of version 2 the same one.

        Raises:
            WrapError: The model, the mesh and the device don't fit the settings, or a parameter
                would lie in two units.
        """
        return _wrap.wrap(self, model, device_mesh)

    @staticmethod
    def describe(model: nn.Module) -> Description:
        """Tell what the units of a wrapped model really are on this rank; not collective.

        Args:
            model: A model that `wrap` has returned.

        Raises:
            WrapError: It is not sharded.
        """
        return _describe.describe(model)

"""What the plugin refuses with the model, the mesh and the ranks at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from shardproof import World
from shardproof_reference import FullyShardedDataParallelPlugin, WrapError
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh

from ._plugin_models import BLOCKS, VERSIONS, WIDTH, Block, Model, loss, wrap


@pytest.mark.ranks(1)
def test_ignored_modules_that_are_not_there() -> None:
    with pytest.raises(WrapError, match=r"ignored_modules='block' matches no module's name"):
        wrap(ignored_modules="block")
    with pytest.raises(WrapError, match="ignored_modules has a Linear that is no module of the"):
        wrap(ignored_modules=[nn.Linear(1, 1)])


@pytest.mark.ranks(1)
@VERSIONS
def test_meta_device_without_anything_to_fill_it_is_refused(version: int) -> None:
    with torch.device("meta"):
        model = Model()
    with pytest.raises(WrapError, match=r"embed\.weight is on the meta device; give"):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(1)
@VERSIONS
def test_activation_checkpointing_of_nothing_is_refused(version: int) -> None:
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        auto_wrap_policy="size_based_wrap",
        min_num_params=10**6,
        activation_checkpointing=True,
    )
    with pytest.raises(WrapError, match="activation_checkpointing=True would do nothing"):
        plugin.wrap(Model())


@pytest.mark.ranks(2)
@VERSIONS
def test_parameter_of_two_units_is_refused_with_both_names(version: int) -> None:
    model = Model()
    model.blocks[1].lin.weight = model.blocks[0].lin.weight
    words = r"blocks\.0\.lin\.weight and blocks\.1\.lin\.weight are one parameter, but lie in the"
    with pytest.raises(WrapError, match=words):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(2)
def test_meshes_that_do_not_fit_are_refused() -> None:
    one = init_device_mesh("cpu", (2,))
    two = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replicate", "shard"))
    for strategy in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
        for mesh, found in ((None, "none"), (one, "1-D")):
            with pytest.raises(WrapError, match=rf"{strategy} needs a 2-D device .* found {found}"):
                wrap(mesh=mesh, sharding_strategy=strategy)
    with pytest.raises(WrapError, match="FULL_SHARD needs no 2-D mesh, found 2-D"):
        wrap(mesh=two)
    with pytest.raises(WrapError, match="LOCAL_STATE_DICT needs no device_mesh, found 1-D"):
        wrap(mesh=one, state_dict_type="LOCAL_STATE_DICT")
    three = init_device_mesh("cpu", (1, 1, 2), mesh_dim_names=("a", "b", "c"))
    with pytest.raises(WrapError, match=r"device_mesh is 1-D .* found 3-D"):
        wrap(mesh=three, fsdp_version=2)


@pytest.mark.ranks(1)
@VERSIONS
def test_sharded_model_is_not_sharded_again(version: int) -> None:
    model = wrap(fsdp_version=version)
    with pytest.raises(WrapError, match="the model is sharded already"):
        wrap(model, fsdp_version=version)


def test_wrapping_needs_a_process_group() -> None:
    with pytest.raises(WrapError, match=r"needs a process group; call .*init_process_group"):
        wrap()


@pytest.mark.ranks(1)
@VERSIONS
def test_description_of_what_is_not_sharded_is_refused(version: int) -> None:
    with pytest.raises(WrapError, match="the Model is not sharded; describe what wrap returns"):
        FullyShardedDataParallelPlugin.describe(Model())


@pytest.mark.ranks(1)
@VERSIONS
def test_function_that_does_not_do_its_work_is_refused(version: int) -> None:
    with torch.device("meta"):
        model = Model()
    with pytest.raises(WrapError, match=r"param_init_fn has left blocks\.0\.scale on the"):
        wrap(model, fsdp_version=version, param_init_fn=lambda module: None)


@pytest.mark.ranks(1)
@VERSIONS
def test_function_that_changes_units_that_are_done_is_refused(version: int) -> None:
    with torch.device("meta"):
        model = Model()
    model.own = nn.Parameter(torch.ones(2, device="meta"))
    with pytest.raises(WrapError, match="param_init_fn has changed units in root"):
        wrap(model, fsdp_version=version, param_init_fn=lambda one: one.to_empty(device="cpu"))


def _other_shape(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False)
    if isinstance(module, nn.Linear):
        module.bias = nn.Parameter(torch.zeros(WIDTH - 1))


def _other_dtype(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False).half()


def _trainable(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False)
    if isinstance(module, nn.Linear):
        module.weight = nn.Parameter(torch.zeros_like(module.weight))


def _taken_out(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False)
    if isinstance(module, Block):
        del module.scale


def _put_in(module: nn.Module) -> None:
    module.to_empty(device="cpu", recurse=False)
    module.register_buffer("more", torch.zeros(1))


CHANGES: list[tuple[Callable[[nn.Module], None], str]] = [
    (_other_shape, r"a trainable parameter \(5,\) .* of blocks\.0\.lin\.bias, which is .* \(6,\)"),
    (
        _other_dtype,
        r"a buffer .* torch\.float16 of blocks\.0\.scale, which is a buffer \(3,\) torch\.float32",
    ),
    (
        _trainable,
        r"a trainable parameter .* of blocks\.0\.lin\.weight, which is a frozen parameter",
    ),
    (_taken_out, r"nothing of blocks\.0\.scale, which is a buffer"),
    (_put_in, r"a buffer \(1,\) torch\.float32 of blocks\.0\.more, which is nothing"),
]


@pytest.mark.ranks(1)
@VERSIONS
@pytest.mark.parametrize(
    ("function", "words"), [pytest.param(*case, id=case[0].__name__) for case in CHANGES]
)
def test_function_that_makes_other_tensors_is_refused(
    version: int, function: Callable[[nn.Module], None], words: str
) -> None:
    with torch.device("meta"):
        model = Model().requires_grad_(function is not _trainable)
    with pytest.raises(WrapError, match=f"param_init_fn has made {words}"):
        wrap(model, fsdp_version=version, param_init_fn=function)


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize("function", [None, lambda one: one.to_empty(device="cpu", recurse=False)])
def test_tensor_on_the_meta_device_that_is_no_buffer_is_refused(
    world: World, version: int, function: Callable[[nn.Module], None] | None
) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = Model()
        model.blocks[1].table = torch.ones(3)
    words = r"blocks\.1\.table is a tensor on the meta device, but no parameter and no buffer"
    if function is not None:
        words = r"param_init_fn has left blocks\.1\.table on the meta device"
    with pytest.raises(WrapError, match=words):
        wrap(model, fsdp_version=version, sync_module_states=True, param_init_fn=function)


@pytest.mark.ranks(1)
@VERSIONS
def test_checkpointed_model_is_not_checkpointed_again(version: int) -> None:
    model = Model()
    model.blocks[0] = checkpoint_wrapper(model.blocks[0])
    with pytest.raises(WrapError, match=r"a model whose blocks\.0 is checkpointed already"):
        wrap(model, fsdp_version=version, activation_checkpointing=True)


def _tensor(*shape: int, **how: Any) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape, **how), requires_grad=False)


BASE = torch.arange(12.0)
# Parameters of one unit, the versions that refuse them, and what those say.
UNFIT: list[tuple[str, list[nn.Parameter], tuple[int, ...], str]] = [
    ("scalar", [_tensor()], (1, 2), "p0 has no dimension to shard along"),
    ("integer", [_tensor(2, dtype=torch.int32)], (1,), "p0 is of torch.int32, but FSDP1 shards"),
    ("complex", [_tensor(2, dtype=torch.cfloat)], (1,), "p0 is of torch.complex64, but FSDP1"),
    ("nothing", [_tensor(0, 3)], (1,), "the unit root has parameters without elements only"),
    ("nothing-beside", [_tensor(0, 3), _tensor(3)], (), ""),
    ("turned", [nn.Parameter(torch.ones(2, 3).t())], (2,), "p0 is not contiguous in memory"),
    ("expanded", [nn.Parameter(torch.ones(1).expand(4))], (1, 2), "p0 is not contiguous in memory"),
    (
        "dtypes",
        [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2, dtype=torch.float64))],
        (1, 2),
        "p0 has dtype torch.float32 and p1 torch.float64, but both lie in the unit root",
    ),
    ("frozen-dtypes", [_tensor(2), _tensor(2, dtype=torch.float64)], (1,), "p0 has dtype torch.fl"),
    (
        "frozen",
        [_tensor(2), nn.Parameter(torch.ones(2))],
        (1,),
        "p0 has requires_grad False and p1 True, .* set use_orig_params=True",
    ),
    (
        "columns",
        [nn.Parameter(BASE.view(3, 4)[:, :2]), nn.Parameter(BASE.view(3, 4)[:, 2:])],
        (1, 2),
        "p0 is not contiguous in memory",
    ),
    ("rows", [nn.Parameter(BASE[:6]), nn.Parameter(BASE[6:])], (), ""),
    ("overlap", [nn.Parameter(BASE[:7]), nn.Parameter(BASE[6:])], (1, 2), "p0 and p1 share memory"),
    (
        "turned-tie",
        [nn.Parameter(BASE.view(3, 4)), nn.Parameter(BASE.view(3, 4).t())],
        (1, 2),
        "p0 and p1 share memory",
    ),
    (
        "half-frozen-tie",
        [nn.Parameter(BASE), nn.Parameter(BASE, requires_grad=False)],
        (1, 2),
        "p0 and p1 share their memory, but only one of them is trainable",
    ),
]


@pytest.mark.ranks(2)
@VERSIONS
@pytest.mark.parametrize(
    ("parameters", "by", "words"), [pytest.param(*case[1:], id=case[0]) for case in UNFIT]
)
def test_parameters_that_cannot_be_one_unit(
    version: int, parameters: list[nn.Parameter], by: tuple[int, ...], words: str
) -> None:
    model = nn.ParameterDict({f"p{number}": one for number, one in enumerate(parameters)})
    plugin = FullyShardedDataParallelPlugin(fsdp_version=version)
    if version in by:
        with pytest.raises(WrapError, match=words):
            plugin.wrap(model)
    else:
        plugin.wrap(model)


@pytest.mark.ranks(1)
@VERSIONS
def test_buffer_that_shows_a_parameter_is_refused(version: int) -> None:
    model = Model()
    model.register_buffer("shown", model.embed.weight.data[:2])
    with pytest.raises(WrapError, match=r"embed\.weight and shown share memory"):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(1)
@VERSIONS
def test_hooks_of_parameters_are_refused(version: int) -> None:
    model = Model()
    model.embed.weight.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(WrapError, match=r"embed\.weight has hooks, which a shard of it would not"):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(1)
@VERSIONS
def test_lazy_model_is_refused(version: int) -> None:
    model = Model()
    model.head = nn.LazyLinear(3)
    with pytest.raises(WrapError, match=r"head\.weight has no shape yet; run the model once"):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(2)
@VERSIONS
def test_buffers_that_share_memory_are_refused_where_they_move(world: World, version: int) -> None:
    with torch.device("meta" if world.rank else "cpu"):
        model = Model()
        model.register_buffer("line", torch.arange(4.0))
        model.register_buffer("rest", model.line[1:])
    with pytest.raises(WrapError, match="line and rest share memory, which wrapping would part"):
        wrap(model, fsdp_version=version, sync_module_states=True)


@pytest.mark.ranks(1)
@VERSIONS
def test_buffers_that_stay_may_share_memory(version: int) -> None:
    model = Model()
    model.register_buffer("line", torch.arange(4.0))
    model.register_buffer("rest", model.line[1:])
    wrapped: Any = wrap(model, fsdp_version=version, sync_module_states=True)
    wrapped.line.add_(1)
    assert wrapped.rest.tolist() == [2, 3, 4]


@pytest.mark.ranks(2)
@VERSIONS
def test_tie_of_ignored_modules_is_no_hindrance(version: int) -> None:
    model = Model()
    model.blocks[0].lin.weight = model.blocks[1].lin.weight
    wrapped = wrap(model, fsdp_version=version, ignored_modules=r"blocks\.\d\.lin")
    loss(wrapped).backward()
    whole = FullyShardedDataParallelPlugin.describe(wrapped).whole
    assert whole == ("blocks.0.lin.weight", "blocks.0.lin.bias", "blocks.1.lin.bias")


ODD: list[tuple[str, Any, dict[str, Any], str]] = [
    ("list", [nn.Linear(1, 1)], {}, "the model is a list; wrap takes a torch.nn.Module"),
    (
        "nothing",
        nn.Sequential(nn.Linear(1, 1)),
        {"ignored_modules": ".*"},
        "leaves nothing to shard",
    ),
    (
        "reshard",
        None,
        {"fsdp_version": 2, "reshard_after_forward": 3},
        "=3 doesn't divide the 2 ra",
    ),
    (
        "never-called",
        None,
        {"transformer_cls_names_to_wrap": "ModuleList"},
        "makes a unit of blocks, a ModuleList, but that is never called",
    ),
]


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("model", "settings", "words"), [pytest.param(*case[1:], id=case[0]) for case in ODD]
)
def test_models_and_settings_that_torch_would_not_name(
    model: Any, settings: dict[str, Any], words: str
) -> None:
    plain = {} if "ignored_modules" in settings or model else BLOCKS
    plugin = FullyShardedDataParallelPlugin(**{**plain, **settings})
    with pytest.raises(WrapError, match=words):
        plugin.wrap(Model() if model is None else model)


@pytest.mark.ranks(1)
@VERSIONS
def test_gradients_are_refused(version: int) -> None:
    model = Model()
    loss(model).backward()
    with pytest.raises(WrapError, match=r"embed\.weight has a gradient, which a shard would lose"):
        wrap(model, fsdp_version=version)


@pytest.mark.ranks(1)
@VERSIONS
def test_sparse_buffer_is_refused_where_it_is_synchronized(version: int) -> None:
    model = Model()
    model.register_buffer("holes", torch.eye(3).to_sparse())
    with pytest.raises(WrapError, match="holes is sparse, which can't be synchronized"):
        wrap(model, fsdp_version=version, sync_module_states=True)
    wrap(model, fsdp_version=version)


@pytest.mark.ranks(2)
def test_meshes_that_torch_would_not_name() -> None:
    swapped = init_device_mesh("cpu", (1, 2), mesh_dim_names=("shard", "replicate"))
    with pytest.raises(WrapError, match=r"the first one replicates, so it is \(replicate, shard\)"):
        wrap(mesh=swapped, fsdp_version=2)
    with pytest.raises(WrapError, match="needs mesh_dim_names with fsdp_version=2"):
        wrap(mesh=init_device_mesh("cpu", (1, 2)), fsdp_version=2)
    with pytest.raises(WrapError, match=r"device_mesh is a DeviceMesh or None, got \(1, 2\)"):
        wrap(mesh=(1, 2), fsdp_version=2)  # type: ignore[arg-type]

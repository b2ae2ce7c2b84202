"""Saving and loading SHARDED checkpoints beside bare `dcp.save` and `dcp.load`: time and memory.

Each figure is the median of the slowest rank's, measured by turns in one run:
`python -m benchmarks.checkpoints [--quick]`.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from shardproof_reference import (
    FullyShardedDataParallelPlugin,
    load_checkpoint,
    save_checkpoint,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import StateDictType

RANKS = 4
WIDTH = 2048
SHARDED = StateDictType.SHARDED_STATE_DICT
Built = tuple[nn.Module, torch.optim.Optimizer]
Step = Callable[[Path, nn.Module, torch.optim.Optimizer], None]


def _build(version: int, layers: int, stepped: bool = True) -> Built:
    """Make a model whose state, with AdamW's, has 3 * 16 MiB a layer."""
    torch.manual_seed(0)
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=version,
        use_orig_params=True,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap="Linear",
    )
    model = plugin.wrap(
        nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    )
    optimizer = torch.optim.AdamW(model.parameters())
    if stepped:
        model(torch.ones(1, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def _dcp_save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": state, "optimizer": optimizer_state}, checkpoint_id=folder)


def _dcp_load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state, optimizer_state = get_state_dict(model, optimizer)
    everything = {"model": state, "optimizer": optimizer_state}
    dcp.load(everything, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=everything["model"],
        optim_state_dict=everything["optimizer"],
    )


def _save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    save_checkpoint(folder, model, optimizer, SHARDED)


def _load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    load_checkpoint(folder, model, optimizer, SHARDED)


def _slowest(figure: float) -> float:
    found = torch.tensor([figure], dtype=torch.float64)
    dist.all_reduce(found, dist.ReduceOp.MAX)
    return float(found)


def _seconds(step: Step, folder: Path, built: Built) -> float:
    dist.barrier()
    begin = time.perf_counter()
    step(folder, *built)
    return _slowest(time.perf_counter() - begin)


def _peak(step: Step, folder: Path, built: Built) -> float:
    """Measure how far above what is resident a step goes, in MiB."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _memory("VmRSS")
    step(folder, *built)
    return _slowest((_memory("VmHWM") - before) / 1024)


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith(f"{name}:"))


def _begin(rank: int, store: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)


def _rank(rank: int, store: str, root: str, layers: int, repeats: int) -> None:
    _begin(rank, store)
    for version in (1, 2):
        times: dict[Step, list[float]] = {_save: [], _dcp_save: [], _load: [], _dcp_load: []}
        built = _build(version, layers)
        for turn in range(repeats + 1):  # the first one is to warm up
            for save, load in ((_save, _load), (_dcp_save, _dcp_load)):
                folder = Path(root) / f"{version}-{save.__name__}"
                took = [_seconds(save, folder, built), _seconds(load, folder, built)]
                for step, seconds in zip((save, load), took, strict=True):
                    times[step] += [seconds] if turn else []
                dist.barrier()
                if rank == 0 and turn < repeats:
                    shutil.rmtree(folder)
        if rank == 0:
            _tell_times(version, {step: statistics.median(of) for step, of in times.items()})
    dist.destroy_process_group()


def _peak_rank(rank: int, store: str, root: str, layers: int, version: int, ours: bool) -> None:
    """Load in a process that has freed no memory yet, which would be used again."""
    _begin(rank, store)
    save, load = (_save, _load) if ours else (_dcp_save, _dcp_load)
    peak = _peak(load, Path(root) / f"{version}-{save.__name__}", _build(version, layers, False))
    if rank == 0:
        print(f"FSDP{version} {load.__name__}: peak above the wrapped model {peak:.0f} MiB a rank")
    dist.destroy_process_group()


def _tell_times(version: int, medians: dict[Step, float]) -> None:
    for name, ours, theirs in (("save", _save, _dcp_save), ("load", _load, _dcp_load)):
        print(
            f"FSDP{version} {name}: {medians[ours]:.2f} s, dcp.{name} {medians[theirs]:.2f} s, "
            f"{medians[ours] / medians[theirs]:.2f} times"
        )


def main() -> None:
    """Print the figures of both versions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller model and fewer repeats")
    quick = parser.parse_args().quick
    layers, repeats = (4, 2) if quick else (21, 5)
    total = 3 * layers * WIDTH * WIDTH * 4 / 2**20
    print(f"model and AdamW of {total:.0f} MiB on {RANKS} ranks, median of {repeats}")
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        mp.spawn(_rank, (store, folder, layers, repeats), nprocs=RANKS)
        print(f"the model's shard: {total / 3 / RANKS:.0f} MiB a rank, AdamW's twice that")
        for version in (1, 2):
            for ours in (True, False):
                arguments = (f"{store}-{version}-{ours}", folder, layers, version, ours)
                mp.spawn(_peak_rank, arguments, nprocs=RANKS)


if __name__ == "__main__":
    main()

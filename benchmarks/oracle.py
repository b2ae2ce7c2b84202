"""Speed of the oracle: million elements a second on one core, by dtype, to fill and to check.

Run alone on an otherwise idle machine: `python benchmarks/oracle.py [--quick]`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from shardproof_suites.oracle import Kind, LocalShard, Oracle, check, fill_, poison_

_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint64,
    torch.uint32,
    torch.uint16,
    torch.uint8,
    torch.bool,
)
_COLUMNS = ("fill value", "fill bits", "poison", "check", "fill exp_avg_sq", "check box")


def _median_rate(run: Callable[[], object], elements: int, repeats: int) -> float:
    """Give the median rate in million elements a second, after one run to warm up."""
    run()
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return elements / statistics.median(seconds) / 1e6


def _require_right(shard: LocalShard, oracle: Oracle) -> None:
    difference = check(shard, oracle)
    if difference is not None:
        raise AssertionError(str(difference))


def _row(dtype: torch.dtype, elements: int, repeats: int) -> list[float]:
    value, bits = Oracle(), Oracle(kind=Kind.BITS)
    tensor = torch.empty(elements, dtype=dtype)
    flat = LocalShard("proj.weight", "param", tensor, (elements,), 0)
    moment = LocalShard("proj.weight", "exp_avg_sq", tensor, (elements,), 0)
    columns = 48
    piece = tensor[: elements // columns * columns].view(-1, columns)
    box = LocalShard("proj.weight", "param", piece, (len(piece), 2 * columns), (0, columns))

    def rate(run: Callable[[], object], count: int = elements) -> float:
        return _median_rate(run, count, repeats)

    rates = [rate(lambda: fill_(flat, bits)), rate(lambda: poison_(flat, value))]
    rates.insert(0, rate(lambda: fill_(flat, value)))
    rates.append(rate(lambda: _require_right(flat, value)))
    rates.append(rate(lambda: fill_(moment, value)))
    fill_(box, value)
    rates.append(rate(lambda: _require_right(box, value), piece.numel()))
    return rates


def main() -> None:
    """Print one line a dtype and the slowest figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer elements and repeats")
    quick = parser.parse_args().quick
    elements, repeats = (2_000_000, 3) if quick else (16_000_000, 9)
    torch.set_num_threads(1)
    print(f"million elements/s on one core, median of {repeats}, {elements} elements")
    print(f"{'dtype':16}" + "".join(f"{column:>17}" for column in _COLUMNS))
    slowest = float("inf")
    for dtype in _DTYPES:
        rates = _row(dtype, elements, repeats)
        slowest = min(slowest, *rates)
        print(f"{str(dtype)[6:]:16}" + "".join(f"{rate:17.0f}" for rate in rates), flush=True)
    print(f"slowest {slowest:.0f}")


if __name__ == "__main__":
    main()

"""What a test on four gloo ranks costs with torch's own test classes and with torchrun."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks._measure import WITHOUT_PLUGIN, seconds, seconds_between, write

ROOT = Path(__file__).resolve().parent.parent

# One set of processes for the class: tests are sent to ranks that stay warm.
CONTINUOUS = """\
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest


class SumTest(MultiProcContinuousTest):
    world_size = 4

    @classmethod
    def backend_str(cls):
        return "gloo"

    @classmethod
    def device_type(cls):
        return "cpu"

    def check_sum(self):
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == self.world_size


for index in range({tests}):
    setattr(SumTest, f"test_{{index}}", lambda self: self.check_sum())
"""

# Processes of its own for each test, spawned.
EACH = """\
import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase


class SumTest(MultiProcessTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def check_sum(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        value = torch.ones(1)
        dist.all_reduce(value)
        assert value.item() == self.world_size


for index in range({tests}):
    setattr(SumTest, f"test_{{index}}", lambda self: self.check_sum())
"""

# What Accelerate's own tests do: a test starts a launcher, which starts a script on the ranks.
SCRIPT = """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
value = torch.ones(1)
dist.all_reduce(value)
assert value.item() == dist.get_world_size() == 4
dist.destroy_process_group()
"""


def continuous(folder: Path, tests: int) -> float:
    """Return the seconds of one more test in torch's MultiProcContinuousTest."""
    return _one_more(write(folder, "test_continuous.py", CONTINUOUS.format(tests=tests + 2)), tests)


def each(folder: Path, tests: int) -> float:
    """Return the seconds of one more test in torch's MultiProcessTestCase."""
    return _one_more(write(folder, "test_each.py", EACH.format(tests=tests + 2)), tests)


def _one_more(file: Path, tests: int) -> float:
    """Return the seconds of a test between the first and the last."""
    return seconds_between(file, *WITHOUT_PLUGIN, passed=tests + 2) / tests


def torchrun(folder: Path) -> float:
    """Return the seconds of one torchrun of a script on four ranks."""
    script = write(folder, "script.py", SCRIPT)
    launcher = (sys.executable, "-m", "torch.distributed.run", "--standalone")
    return seconds((*launcher, "--nproc-per-node", "4", script), folder)[0]


def floor(messages: int) -> float:
    """Return the median seconds of a message to four warm processes and one barrier."""
    command = (sys.executable, "-m", "benchmarks._floor", str(messages))
    return float(seconds(command, ROOT)[1])

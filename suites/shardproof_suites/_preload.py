"""Modules that FSDP and DCP import on first use, imported before ranks are forked.

Each rank of each stage is a fresh process: what isn't there when it is forked, it imports itself,
in seconds of which torch._dynamo takes most.
"""

from contextlib import suppress

import torch._dynamo
import torch.distributed.checkpoint._fsspec_filesystem
import torch.distributed.tensor

with suppress(ModuleNotFoundError):  # torch 2.6 has none, and so imports none later either
    import torch.utils.serialization  # noqa: F401

"""Modules that FSDP and DCP import on first use, imported before ranks are forked.

Each rank of each stage is a fresh process: what isn't there when it is forked, it imports itself,
in seconds of which torch._dynamo takes most.
"""

import torch._dynamo
import torch.distributed.checkpoint._fsspec_filesystem
import torch.distributed.tensor
import torch.utils.serialization  # noqa: F401

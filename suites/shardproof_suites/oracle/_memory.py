"""Tensors seen as arrays of unsigned integers, one a lane, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from shardproof_suites.oracle._encoding import Lanes, lane_type


def tensor_of(lanes: Lanes, dtype: torch.dtype) -> torch.Tensor:
    """See bits as a 1-D tensor of `dtype`, without a copy."""
    # Through bytes: torch has no views between all of its unsigned and complex dtypes.
    return torch.from_numpy(lanes.view(np.uint8)).view(dtype)


def lanes_of(tensor: torch.Tensor) -> Lanes | None:
    """See a tensor's memory as a flat array of lanes, without a copy.

    Returns:
        None where that can't be done: another device, strides, a lazy conjugate or negative.
    """
    if tensor.device.type != "cpu" or tensor.is_conj() or tensor.is_neg():
        return None
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        return None
    # A dimension of one element may have any stride, which a view of other size refuses.
    flat = tensor.as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy().view(lane_type(tensor.dtype))


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads pieces of a tensor of any device and layout; bounded memory where it is contiguous.

    Attributes:
        flat: The tensor as one dimension.
        direct: Its memory, where that can be read in place.
    """

    flat: torch.Tensor
    direct: Lanes | None

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Reader:
        """Look at a tensor; only one with strides of its own is copied."""
        flat = tensor.detach().reshape(-1)
        return cls(flat, lanes_of(flat))

    def read(self, elements: slice) -> Lanes:
        """Give the bits of some neighbouring elements, perhaps a view of the tensor's memory."""
        if self.direct is not None:
            lanes = len(self.direct) // len(self.flat) if len(self.flat) else 1
            return self.direct[elements.start * lanes : elements.stop * lanes]
        host = self.flat[elements].cpu().resolve_conj().resolve_neg().contiguous()
        found = lanes_of(host)
        if found is None:
            raise TypeError(f"can't read a tensor of layout {self.flat.layout}")
        return found

"""The model zoo: its corners are there, and no two things in it can be swapped unseen."""

from __future__ import annotations

import pytest
import torch
from shardproof_suites.expectation import Expectation
from shardproof_suites.models import ZOO
from shardproof_suites.oracle import assert_distinct

DTYPES = (torch.float32, torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ZOO)
def test_no_two_shards_rows_or_roles_agree(name: str, dtype: torch.dtype) -> None:
    expected = Expectation.of(ZOO[name].build(dtype))
    assert_distinct(
        expected.catalogue, world_sizes=(1, 2, 3, 4), seeds=(0,), oracle=expected.oracle
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ZOO)
def test_a_model_is_documented_runs_and_trains_every_parameter(
    name: str, dtype: torch.dtype
) -> None:
    zoo, model = ZOO[name], ZOO[name].build(dtype)
    assert f"`{name}`" in (getattr(zoo, "__doc__", None) or "")
    model(zoo.batch(dtype, torch.Generator().manual_seed(0))).float().sum().backward()
    assert all(parameter.dtype is dtype for parameter in model.parameters())
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert all(buffer.dtype is torch.float32 for buffer in model.buffers())


def test_uneven_has_the_goldens_sizes() -> None:
    expected = Expectation.of(ZOO["uneven"].build(torch.float32))
    roles = [entry.role for entry in expected.catalogue]
    assert (roles.count("param"), roles.count("buffer"), expected.units) == (12, 2, 3)
    rows = {entry.fqn: entry.shape[0] for entry in expected.catalogue if entry.role == "param"}
    assert rows["head.weight"] == 3


def test_tied_has_one_parameter_with_two_names() -> None:
    expected = Expectation.of(ZOO["tied"].build(torch.float32))
    assert [entry.role for entry in expected.catalogue].count("param") == 5
    assert expected.names["embed.weight"] == ("embed.weight", "lm_head.weight")

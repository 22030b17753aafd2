"""The NumPy forward pass that precisions are held against, against the graph and the formulas, whatever the sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from coolsd_trt.export.exact import exact_logits
from coolsd_trt.export.graph.transformer import write_target
from coolsd_trt.export.llamagen import LlamaGenTarget
from coolsd_trt.export.precision_cost import precision_cost
from coolsd_trt.runtime.condition import ClassCondition
from hypothesis import given

from .models import LOWERING, ArrayCheckpoint, target_config, target_logits, target_tensors
from .test_dims import FEW, SHAPES


@FEW
@given(s=SHAPES)
def test_it_is_the_models_definition(s) -> None:
    tensors = target_tensors(s)
    target = LlamaGenTarget(ArrayCheckpoint(tensors, target_config(s)))
    length = s.zero_rows + s.grid[0] * s.grid[1]
    x = np.random.default_rng(0).standard_normal((2, length, s.hidden)).astype(np.float32)
    found = exact_logits(target, x, 3)
    assert found.shape == (2, 3, s.vocab)
    for row, logits in zip(x, found, strict=True):
        expected = target_logits(tensors, s, row.astype(np.float64), np.tri(length, dtype=bool))
        np.testing.assert_allclose(logits, expected[-3:], atol=1e-4)


@FEW
@given(s=SHAPES)
def test_fp32_costs_nothing(s, tmp_path: Path) -> None:
    target = LlamaGenTarget(ArrayCheckpoint(target_tensors(s), target_config(s)))
    spec = write_target(tmp_path / "t.onnx", target, 2, LOWERING)
    condition = ClassCondition(names=tuple("abcde"), id_offset=s.vocab, null_class=5)
    cost = precision_cost(tmp_path / "t.onnx", spec, target, condition, None)
    assert abs(cost.kl) < 1e-7
    assert cost.tv < 1e-5
    assert cost.positions == 2 * min(24, s.grid[0] * s.grid[1])

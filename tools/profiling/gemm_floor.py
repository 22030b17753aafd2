"""The floor under a target pass: its matrix products alone, in the same precision, on the same onnxruntime."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ...engines.bundle import Bundle
from ...engines.manifest import TransformerSpec
from ...engines.ort import open_session

PRODUCTS = ("MatMul", "MatMulInteger")


class GemmFloor:
    """A graph of nothing but the products of a target, with random weights. Use as a context manager.

    Its shapes come from the target's own graph: every product with a weight, in order. Raises: ImportError without
    the onnx package.
    """

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        spec = bundle.manifest.target
        self.shapes = weight_shapes(bundle.file(spec.files[0]))
        self._bindings: dict[tuple[int, int], tuple[Any, list[Any]]] = {}
        with TemporaryDirectory() as folder:
            path = Path(folder) / "products.onnx"
            _write(path, self.shapes, spec)
            self._session = open_session(path, threads)

    def __enter__(self) -> GemmFloor:
        return self

    def __exit__(self, *reason: object) -> None:
        self._session = None

    def run(self, rows: int, tokens: int) -> None:
        """One pass of `rows` rows x `tokens` tokens."""
        if (rows, tokens) not in self._bindings:
            self._bindings[rows, tokens] = self._bind(rows, tokens)
        self._session.run_with_iobinding(self._bindings[rows, tokens][0])

    def _bind(self, rows: int, tokens: int) -> tuple[Any, list[Any]]:
        """The binding, and the arrays it points at."""
        binding = self._session.io_binding()
        widths = {f"x{inner}": inner for _, inner in self.shapes}
        widths |= {f"y{i}": out for i, (out, _) in enumerate(self.shapes)}
        arrays = {name: np.ones((rows, tokens, width), dtype=np.float32) for name, width in widths.items()}
        for name, array in arrays.items():
            bind = binding.bind_input if name.startswith("x") else binding.bind_output
            bind(name, "cpu", 0, np.float32, array.shape, array.ctypes.data)
        return binding, list(arrays.values())


def weight_shapes(graph: Path) -> list[tuple[int, int]]:
    """(out, in) of every product with a weight, in the order they run."""
    import onnx

    model = onnx.shape_inference.infer_shapes(onnx.load(str(graph), load_external_data=False))
    sizes = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    for value in model.graph.value_info:  # weights that are widened before their product
        sizes[value.name] = tuple(size.dim_value for size in value.type.tensor_type.shape.dim)
    # Weights are the matrices; what flows has a batch dimension, too.
    factors = [sizes.get(node.input[1], ()) for node in model.graph.node if node.op_type in PRODUCTS]
    return [(size[1], size[0]) for size in factors if len(size) == 2]


def _write(path: Path, shapes: list[tuple[int, int]], spec: TransformerSpec) -> None:
    from ...export.graph.attention import LOWERINGS
    from ...export.graph.builder import GraphBuilder
    from ...export.graph.linear import linear
    from ...export.graph.precision import Precision

    rng = np.random.default_rng(0)
    precision = Precision(spec.precision, spec.cache_dtype != "float32", spec.block_size or Precision.block_size)
    with GraphBuilder(path, LOWERINGS[spec.lowering].opset, precision) as g:
        inputs = {
            inner: g.narrow(g.input(f"x{inner}", np.float32, ("rows", "tokens", inner)))
            for inner in dict.fromkeys(inner for _, inner in shapes)
        }
        for i, (out, inner) in enumerate(shapes):
            g.scope(f"product {i}")
            g.output(f"y{i}", np.float32, ("rows", "tokens", out))
            weight = rng.standard_normal((out, inner), dtype=np.float32) * np.float32(inner**-0.5)
            named = None if g.float_type is not np.float32 else f"y{i}"
            y = linear(g, inputs[inner], f"w{i}", weight, named, head=i == len(shapes) - 1)
            if g.float_type is not np.float32:
                g.widen(y, named=f"y{i}")
        g.save()

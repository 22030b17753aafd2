"""A thin pen for ONNX graphs: nodes by op name, weights streamed to an external data file as they are added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ...engines.bundle import record_file
from ...engines.manifest import Tensor
from .precision import FP32, Precision
from .quantise import Codes, pack_int4

# Page-aligned, so that runtimes can map the data file instead of copying it.
ALIGNMENT = 4096
# Smaller weights stay inside the .onnx, where shape inference can see them.
EXTERNAL_BYTES = 4096
IR_VERSION = 11
PRODUCER = "coolsd-trt"

Array = NDArray[Any]
Dim = int | str


class GraphBuilder:
    """One graph in the making. Values are names; use as a context manager, then `save()` inside it.

    Weights go to `<path>.data` one by one, so memory holds a single tensor at a time. The graph is strongly typed:
    `real` gives a weight the graph's float type, and `widen` and `narrow` go to float32 and back.

    Several graphs can share the data file: variants of this one, see `only_in`, and others, see `sharing`.
    """

    def __init__(self, path: Path, opset: int, precision: Precision = FP32) -> None:
        self.path = path
        self.data_path = path.with_name(path.name + ".data")
        self.parameters = 0
        self.precision = precision
        self.float_type = precision.float_type
        self.opset = precision.opset(opset)
        self._variant = ""
        self._nodes: list[tuple[str, Any]] = []
        self._weights: dict[str, Any] = {}
        self._initializers: dict[str, Any] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._scope = ""
        self._count = 0

    def __enter__(self) -> GraphBuilder:
        self._data = self.data_path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._data.close()
        if not self.data_path.stat().st_size:
            self.data_path.unlink()

    def sharing(self, path: Path) -> GraphBuilder:
        """The pen of another graph beside this one, with the same weights. Use it before this one closes."""
        other = GraphBuilder(path, self.opset, self.precision)
        other.data_path, other._data, other._weights = self.data_path, self._data, self._weights
        return other

    @contextmanager
    def only_in(self, variant: str) -> Iterator[None]:
        """Nodes added meanwhile belong to one variant of the graph; all others are common to all variants."""
        self._variant = variant
        try:
            yield
        finally:
            self._variant = ""

    def scope(self, name: str) -> None:
        """Prefix of the names that follow, so that layers are told apart in profiles."""
        self._scope = name

    def input(self, name: str, dtype: type, shape: Sequence[Dim]) -> str:
        self._inputs.append(helper.make_tensor_value_info(name, onnx_type(dtype), list(shape)))
        return name

    def output(self, name: str, dtype: type, shape: Sequence[Dim]) -> None:
        """Declare a value made under that name (see `named`) as graph output."""
        self._outputs.append(helper.make_tensor_value_info(name, onnx_type(dtype), list(shape)))

    def op(self, kind: str, *inputs: str, named: str | None = None, **attributes: Any) -> str:
        """Add a node with one output and return its name."""
        return self.ops(kind, *inputs, outputs=[named or self._fresh(kind)], **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: Sequence[str] | int, **attributes: Any) -> list[str]:
        """Add a node with several outputs (their names, or how many) and return their names."""
        names = [self._fresh(kind) for _ in range(outputs)] if isinstance(outputs, int) else list(outputs)
        node = helper.make_node(kind, list(inputs), names, name=names[0] + "/node", **attributes)
        self._nodes.append((self._variant, node))
        return names

    def constant(self, value: Array) -> str:
        """A small tensor; equal ones are shared."""
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            name = f"const_{len(self._constants)}"
            self._initializers[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
            self._constants[key] = name
        return self._constants[key]

    def ints(self, *values: int) -> str:
        """An int64 vector constant (shapes, axes, sizes)."""
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def weight(self, name: str, value: Array) -> str:
        """A trained tensor or a table; large ones are written to the data file right away. A name that is known already
        stands for the value it had first."""
        return self._stored(name, np.ascontiguousarray(value), parameters=value.size)

    def int4(self, name: str, codes: Codes) -> str:
        """A trained tensor as 4-bit integers, from codes in -8..7."""
        return self._stored(name, pack_int4(codes), TensorProto.INT4, codes.shape, parameters=codes.size)

    def scales(self, name: str, value: Array) -> str:
        """What a quantised tensor is multiplied with. No parameters: the tensor has been counted."""
        return self._stored(name, np.ascontiguousarray(value))

    def real(self, value: Array) -> Array:
        """A float array in the graph's float type."""
        return np.asarray(value, dtype=self.float_type)

    def widen(self, x: str, named: str | None = None) -> str:
        """To float32, where sums and squares would leave the range of a narrower type; outputs are `named`."""
        if self.float_type is not np.float32:
            return self.op("Cast", x, to=TensorProto.FLOAT, named=named)
        return x if named is None else self.op("Identity", x, named=named)

    def narrow(self, x: str) -> str:
        """From float32 to the graph's float type."""
        return x if self.float_type is np.float32 else self.op("Cast", x, to=onnx_type(self.float_type))

    def save(self, variant: str = "", path: Path | None = None) -> Path:
        """Write the .onnx of one variant (at `path`, if not the builder's own), check it (`onnx.checker` with full
        shape inference), and return where it is."""
        path = path or self.path
        self._data.flush()
        nodes = [node for owner, node in self._nodes if owner in ("", variant)]
        read = {name for node in nodes for name in node.input}
        initializers = [tensor for name, tensor in self._initializers.items() if name in read]
        domains = [helper.make_opsetid("", self.opset)]
        domains += [helper.make_opsetid(domain, 1) for domain in sorted({node.domain for node in nodes} - {""})]
        model = helper.make_model(
            helper.make_graph(nodes, path.stem, self._inputs, self._outputs, initializers),
            opset_imports=domains,
            ir_version=IR_VERSION,
            producer_name=PRODUCER,
        )
        path.write_bytes(model.SerializeToString())
        onnx.checker.check_model(str(path), full_check=True)
        return path

    def spec(self) -> dict[str, Any]:
        """What the manifest says of any saved graph: the fields of `GraphSpec`."""
        files = [self.path, self.data_path] if self._data.tell() else [self.path]
        return {
            "files": tuple(map(record_file, files)),
            "precision": self.precision.name,
            "quantisation": self.precision.quantisation,
            "block_size": self.precision.block_size if self.precision.name == "int4" else None,
            "parameters": self.parameters,
            "inputs": tuple(_spec(value) for value in self._inputs),
            "outputs": tuple(_spec(value) for value in self._outputs),
        }

    def _stored(
        self,
        name: str,
        value: Array,
        kind: int | None = None,
        shape: Sequence[int] | None = None,
        parameters: int = 0,
    ) -> str:
        """Make a tensor known, once, and an initializer of this graph. kind, shape: ONNX's type and dimensions, where
        the array is packed."""
        if name not in self._weights:
            kind = onnx_type(value.dtype.type) if kind is None else kind
            tensor = TensorProto(name=name, data_type=kind, dims=value.shape if shape is None else shape)
            self._write(tensor, value.reshape(-1).view(np.uint8))
            self._weights[name] = tensor
            self.parameters += parameters
        self._initializers[name] = self._weights[name]
        return name

    def _write(self, tensor: Any, content: NDArray[np.uint8]) -> None:
        """Into the tensor if it is small, else to the data file."""
        if content.nbytes < EXTERNAL_BYTES:
            tensor.raw_data = content.tobytes()
            return
        self._data.write(b"\0" * (-self._data.tell() % ALIGNMENT))
        tensor.data_location = TensorProto.EXTERNAL
        location = {"location": self.data_path.name, "offset": self._data.tell(), "length": content.nbytes}
        for key, entry in location.items():
            tensor.external_data.add(key=key, value=str(entry))
        self._data.write(content.data)

    def _fresh(self, kind: str) -> str:
        self._count += 1
        return f"{self._scope}/{kind.lower()}_{self._count}" if self._scope else f"{kind.lower()}_{self._count}"


def fp32(value: Array) -> NDArray[np.float32]:
    return np.asarray(value, dtype=np.float32)


def onnx_type(dtype: type) -> int:
    """ONNX's number of a NumPy type, for `Cast` and declarations."""
    kind: int = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return kind


def _spec(value: Any) -> Tensor:
    tensor = value.type.tensor_type
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
    return Tensor(name=value.name, dtype=dtype, shape=tuple(d.dim_param or d.dim_value for d in tensor.shape.dim))

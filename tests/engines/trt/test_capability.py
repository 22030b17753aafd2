"""`coolsd-trt check --graph`: what TensorRT's parser refuses, and what stands in the way of asking it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import onnx
import pytest
from coolsd_trt.engines.trt import capability
from coolsd_trt.engines.trt.capability import choose_flavour, refusals
from coolsd_trt.engines.trt.flavour import FLAVOURS
from coolsd_trt.runtime import BackendError, InputError
from coolsd_trt.tools.cli.commands import app
from onnx import TensorProto, helper
from typer.testing import CliRunner

needs_rtx = pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_rtx") is None, reason="needs tensorrt-rtx: pip install 'coolsd-trt[rtx]'"
)
needs_polygraphy = pytest.mark.skipif(importlib.util.find_spec("polygraphy") is None, reason="needs polygraphy")
RTX = FLAVOURS["trt-rtx"]


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """Two random draws, which TensorRT has no layer for, between nodes that it reads."""
    nodes = [
        helper.make_node("Sigmoid", ["x"], ["p"], name="squash"),
        helper.make_node("Bernoulli", ["p"], ["a"], name="first"),
        helper.make_node("Bernoulli", ["a"], ["y"], name="second"),
    ]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in "xy"]
    path = tmp_path / "drawing.onnx"
    opset = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", values[:1], values[1:]), opset_imports=opset), path)
    return path


@needs_rtx
@needs_polygraphy
def test_refused_nodes_are_named_by_operator_with_the_reason(graph: Path) -> None:
    [refusal] = refusals(graph, RTX)
    assert (refusal.operator, refusal.nodes) == ("Bernoulli", ("first", "second"))
    assert refusal.reason == "TensorRT has no such operator"
    done = CliRunner().invoke(app, ["check", "--graph", str(graph)])
    assert done.exit_code == 1
    assert "Bernoulli x 2 (first, second): TensorRT has no such operator" in done.stdout


@needs_rtx
@needs_polygraphy
def test_the_graphs_of_a_bundle_are_read(tiny_bundle: Path) -> None:
    before = sorted(tiny_bundle.iterdir())
    for part in ("target", "draft", "image_decoder"):
        done = CliRunner().invoke(app, ["check", "--graph", str(tiny_bundle / f"{part}.onnx")])
        assert (done.exit_code, "trt-rtx reads every node" in done.stdout) == (0, True)
    assert sorted(tiny_bundle.iterdir()) == before


@pytest.mark.parametrize(
    "name, content, words",
    [
        ("x.onnx", b"no graph", "not a readable ONNX file"),
        ("x.onnx", b"", "an ONNX file without nodes"),
        ("x.onnx", None, "no such file"),
        ("x.engine", b"", "expected an .onnx file"),
    ],
)
@needs_polygraphy
def test_a_file_that_is_no_graph_is_named(tmp_path: Path, name: str, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=words):
        refusals(tmp_path / name, RTX)


def test_a_polygraphy_that_fails_is_quoted(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "_POLYGRAPHY", "import sys; print('the last words'); sys.exit(3)")
    monkeypatch.setattr(capability, "find_spec", lambda name: name)
    with pytest.raises(BackendError, match=r"polygraphy failed \(exit code 3\): the last words"):
        refusals(graph, RTX)


def test_without_tensorrt_the_way_to_get_it_is_said(graph: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capability, "find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"neither flavour is installed.*coolsd-trt\[rtx\].*coolsd-trt\[trt\]"):
        choose_flavour("auto")
    with pytest.raises(BackendError, match=r"polygraphy is not installed.*coolsd-trt\[rtx\]"):
        refusals(graph, RTX)
    with pytest.raises(InputError, match=r"--backend ort-cpu: graphs are checked for TensorRT\. Use trt-rtx or trt"):
        choose_flavour("ort-cpu")


def test_enterprise_tensorrt_is_not_asked_without_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_gpu() -> None:
        raise BackendError("no usable NVIDIA driver.")

    monkeypatch.setattr(capability, "probe_gpu", no_gpu)
    monkeypatch.setattr(capability, "load_module", lambda flavour: pytest.fail("TensorRT was loaded first"))
    with pytest.raises(BackendError, match=r"backend trt: no usable NVIDIA driver\. The backend trt-rtx reads graphs"):
        choose_flavour("trt")


def test_reasons_over_several_lines_belong_to_one_node() -> None:
    text = """===== Summary =====
Stack trace  | Operator | Node | Reason
---------------------------------------
             | If       | a    | In node 3 with name: a and operator: If (parseNode): INVALID_NODE: Invalid Node - a
it can't be read
             | MyOp     | b    | In node 4 with name: b and operator: MyOp (f): UNSUPPORTED_NODE: false
"""
    first, second = capability._read_table(text)
    assert (first.operator, first.reason) == ("If", "INVALID_NODE: Invalid Node - a it can't be read")
    assert (second.nodes, second.reason) == (("b",), "TensorRT has no such operator")


def test_a_bundle_or_a_graph_is_needed(tiny_bundle: Path) -> None:
    for arguments in ([], [str(tiny_bundle), "--graph", "x.onnx"]):
        done = CliRunner().invoke(app, ["check", *arguments])
        assert isinstance(done.exception, InputError)

"""Every name we use exists in the real bindings of enterprise TensorRT, so a removed flag fails here.

The bindings' wheels are on PyPI, the libraries they link are not: empty libraries with the few functions the bindings
name stand in for them. Nothing is called. `make test` unpacks the versions of bindings.txt, each into its own folder.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from functools import reduce
from pathlib import Path

import pytest
from coolsd_trt.engines.trt.flavour import FLAVOURS

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "engines" / "trt"
PINS = Path(__file__).with_name("bindings.txt").read_text(encoding="utf-8").splitlines()
VERSIONS = [pin.partition("==")[2] for pin in PINS if not pin.startswith("#")]
# What only TensorRT-RTX has, and is asked for with hasattr or only of that flavour.
RTX_ONLY = ("BuilderFlag.REQUIRE_USER_ALLOCATION", "ComputeCapability", "DynamicShapesKernelSpecializationStrategy")
METHODS = [
    "Builder.build_serialized_network",
    "Builder.create_builder_config",
    "Builder.create_network",
    "Builder.create_optimization_profile",
    "IBuilderConfig.add_optimization_profile",
    "IBuilderConfig.clear_flag",
    "IBuilderConfig.create_timing_cache",
    "IBuilderConfig.get_timing_cache",
    "IBuilderConfig.set_flag",
    "IBuilderConfig.set_timing_cache",
    "ITimingCache.serialize",
    "IOptimizationProfile.set_shape",
    "INetworkDefinition.get_layer",
    "INetworkDefinition.num_layers",
    "ILayer.type",
    "IAttentionInputLayer.attention",
    "IAttention.decomposable",
    "OnnxParser.parse",
    "OnnxParser.num_errors",
    "OnnxParser.get_error",
    "ParserError.desc",
    "Runtime.deserialize_cuda_engine",
    "ICudaEngine.create_execution_context",
    "ICudaEngine.get_device_memory_size_for_profile_v2",
    "ICudaEngine.get_tensor_name",
    "ICudaEngine.num_io_tensors",
    "IExecutionContext.execute_async_v3",
    "IExecutionContext.set_device_memory",
    "IExecutionContext.set_input_shape",
    "IExecutionContext.set_optimization_profile_async",
    "IExecutionContext.set_tensor_address",
    "LayerType.KV_CACHE_UPDATE",
]
# Asked for only where TensorRT has them.
CACHE_LAYERS = ("IAttention", "LayerType.ATTENTION_INPUT", "LayerType.KV_CACHE_UPDATE")
RTX_METHODS = [
    "IBuilderConfig.num_compute_capabilities",
    "IBuilderConfig.set_compute_capability",
    "ICudaEngine.create_runtime_config",
    "IExecutionContext.is_stream_capturable",
    "IRuntimeConfig.create_runtime_cache",
    "IRuntimeConfig.dynamic_shapes_kernel_specialization_strategy",
    "IRuntimeConfig.set_execution_context_allocation_strategy",
    "IRuntimeConfig.set_runtime_cache",
]
LIBRARIES = {
    "nvinfer": [
        "createInferBuilder_INTERNAL",
        "createInferRefitter_INTERNAL",
        "createInferRuntime_INTERNAL",
        "getBuilderPluginRegistry",
        "getPluginRegistry",
    ],
    "nvonnxparser": ["createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getNvOnnxParserVersion"],
    "nvinfer_plugin": ["initLibNvInferPlugins"],
}


def names_in_our_code() -> set[str]:
    """Everything written as `trt.A.b` or `self._trt.A.b`."""
    names = set()
    for file in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            text = ast.unparse(node) if isinstance(node, ast.Attribute) else ""
            head, _, rest = text.removeprefix("self._").partition(".")
            if head == "trt" and rest and not rest.startswith("__"):
                names.add(rest)
    return names


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler, for the libraries that stand in for TensorRT's")
    folder = tmp_path_factory.mktemp("libraries")
    for library, functions in LIBRARIES.items():
        source = folder / f"{library}.c"
        source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in functions))
        for major in (10, 11):
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-o", folder / f"lib{library}.so.{major}", source], check=True
            )
    return folder


def test_our_code_names_what_it_should() -> None:
    names = names_in_our_code()
    assert {"BuilderFlag.TF32", "NetworkDefinitionCreationFlag.STRONGLY_TYPED", "Runtime"} <= names
    assert not {name for name in names if name.split(".")[-1] in ("FP16", "BF16", "INT8", "EXPLICIT_BATCH")}


def names_missing(version: str, libraries: Path, names: set[str]) -> list[str]:
    """Those of the names that bindings of a version lack."""
    folder = ROOT / "build" / "tensorrt_bindings" / version
    if not folder.is_dir():
        pytest.skip(f"needs the bindings of TensorRT {version}, which `make test` unpacks where they can be had")
    script = """
import sys, tensorrt_bindings as trt
print(trt.__version__)
for path in sys.argv[1:]:
    value = trt
    for part in path.split("."):
        value = getattr(value, part, None)
    if value is None:
        print(path)
"""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", script, *sorted(names)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found, *missing = done.stdout.split()
    assert found == version
    return missing


@pytest.mark.parametrize("version", VERSIONS)
def test_the_bindings_have_every_name(version: str, libraries: Path) -> None:
    names = {name for name in names_in_our_code() if not name.startswith(RTX_ONLY)} | set(METHODS)
    if tuple(map(int, version.split(".")[:2])) < FLAVOURS["trt"].caches_since:
        names = {name for name in names if not name.startswith(CACHE_LAYERS)}
    assert names_missing(version, libraries, names) == []


def test_tensorrt_rtx_has_every_name() -> None:
    trt = pytest.importorskip("tensorrt_rtx", reason="needs tensorrt-rtx: pip install 'coolsd-trt[rtx]'")
    for name in {*names_in_our_code(), *METHODS, *RTX_METHODS}:
        assert reduce(lambda at, part: getattr(at, part, None), name.split("."), trt) is not None, name


def test_a_removed_name_is_noticed(libraries: Path) -> None:
    removed = {"BuilderFlag.FP16", "BuilderFlag.INT8", "NetworkDefinitionCreationFlag.EXPLICIT_BATCH"}
    assert names_missing(VERSIONS[0], libraries, removed) == []
    assert set(names_missing(VERSIONS[-1], libraries, removed)) == removed

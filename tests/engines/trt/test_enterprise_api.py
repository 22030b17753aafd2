"""Every name we use exists in the real bindings of enterprise TensorRT, so a removed flag fails here.

The bindings' wheels are on PyPI, the libraries they link are not: empty libraries with the few functions the bindings
name stand in for them. Nothing is called. More versions than the installed one are checked where
TENSORRT_BINDINGS lists folders that unpacked wheels are in.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[3] / "engines" / "trt"
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


def bindings() -> list[Path]:
    folders = [Path(folder) for folder in os.environ.get("TENSORRT_BINDINGS", "").split(os.pathsep) if folder]
    installed = importlib.util.find_spec("tensorrt_bindings")
    if installed is not None and installed.origin is not None:
        folders.append(Path(installed.origin).parents[1])
    return folders


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


@pytest.mark.skipif(not bindings(), reason="needs bindings: pip install --no-deps tensorrt-cu12-bindings")
@pytest.mark.parametrize("folder", bindings(), ids=lambda folder: folder.parent.name + "/" + folder.name)
def test_the_bindings_have_every_name(folder: Path, libraries: Path) -> None:
    script = """
import sys, tensorrt_bindings as trt
for path in sys.argv[1:]:
    value = trt
    for part in path.split("."):
        value = getattr(value, part, None)
    if value is None:
        print(path)
"""
    names = sorted({name for name in names_in_our_code() if not name.startswith(RTX_ONLY)} | set(METHODS))
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-c", script, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []

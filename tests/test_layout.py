"""Who may import whom, and that the packaging list names every folder."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib  # type: ignore[no-redef]

ROOT = Path(__file__).parent.parent
FOLDERS = ("runtime", "engines", "export", "tools")
# Folder -> what it may import of ours. `runtime.pipeline` joins runtime and engines, inside `Pipeline.load`.
ALLOWED = {
    "runtime": {"runtime"},
    "engines": {"engines", "runtime"},
    "export": {"export", "engines", "runtime"},
    "tools": {"tools", "export", "engines", "runtime"},
}
LAZY_EXCEPTION = ("runtime/pipeline.py", "engines")
HEAVY = {
    "torch",
    "onnx",
    "onnxruntime",
    "tensorrt",
    "tensorrt_rtx",
    "cuda",
    "nvtx",
    "polygraphy",
    "safetensors",
    "matplotlib",
}
MODULES = sorted(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


def imports(file: Path) -> list[tuple[str, bool]]:
    """(top-level name or our folder, is it at module level) of every import of a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    top_level = {id(node) for node in tree.body}
    package = file.relative_to(ROOT).parts[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name.split(".")[0], id(node) in top_level) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parent = ("coolsd_trt", *package)[: len(package) + 2 - node.level]
                target = (*parent, *(node.module or "").split(".")) if node.module else (*parent, node.names[0].name)
                found.append((target[1], id(node) in top_level))
            else:
                found.append(((node.module or "").split(".")[0], id(node) in top_level))
    return found


@pytest.mark.parametrize("file", MODULES, ids=lambda file: str(file.relative_to(ROOT)))
def test_arrows(file: Path) -> None:
    relative = str(file.relative_to(ROOT))
    folder = relative.split("/")[0]
    for name, at_top in imports(file):
        if name in FOLDERS:
            lazy_join = (relative, name) == LAZY_EXCEPTION and not at_top
            assert name in ALLOWED[folder] or lazy_join, f"{relative} must not import {name}"
        assert name != "coolsd_trt", f"{relative}: imports inside the package are relative"
        if folder == "runtime":
            assert name not in HEAVY, f"{relative} must not import {name}: the runtime is NumPy only"
        if folder in ("engines", "export") and name in ("torch", "onnxruntime", "tensorrt", "tensorrt_rtx", "cuda"):
            assert not at_top, f"{relative} must import {name} inside the function that needs it"


def test_packaging_lists_every_package() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    folders = {file.parent.relative_to(ROOT) for file in MODULES}
    assert listed == {"coolsd_trt." + ".".join(folder.parts) for folder in folders}


def test_the_runtime_loads_nothing_heavy() -> None:
    script = "import sys, coolsd_trt.runtime; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)


def test_building_and_generating_need_no_torch(tiny_checkpoints: Path, tmp_path: Path) -> None:
    script = """
import sys
sys.modules["torch"] = None  # any import of it now fails
from pathlib import Path
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import Pipeline
source, out = Path(sys.argv[1]), Path(sys.argv[2])
build_bundle(BuildRequest(source / "target", source / "image_tokenizer", source / "draft"), out)
with Pipeline.load(out) as pipeline:
    print(len(pipeline.generate([0]).images))
"""
    arguments = [sys.executable, "-c", script, str(tiny_checkpoints), str(tmp_path / "bundle")]
    assert subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip() == "1"


@pytest.mark.parametrize(
    "command", ["--help", "build --help", "generate --help", "profile --help", "build --random-weights c2i-B --out b"]
)
def test_the_command_line_loads_without_what_only_builds_need(command: str) -> None:
    """An application that draws pictures installs no ONNX package."""
    hidden = ("onnx", "ml_dtypes", "safetensors", "matplotlib", "torch", "huggingface_hub")
    script = f"import sys; sys.modules.update(dict.fromkeys({hidden})); from coolsd_trt.tools.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script, *command.split()], capture_output=True, text=True)
    if command.endswith("--help"):
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2
        assert "pip install 'coolsd-trt[export]'" in done.stderr

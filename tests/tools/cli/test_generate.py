from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime.images import read_parameters
from PIL import Image

COMMAND = [sys.executable, "-m", "coolsd_trt.tools.cli"]


def coolsd(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, **options)


def generate(bundle: Path, out: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return coolsd("generate", bundle, "--out", out, *arguments)


def test_pictures_statistics_and_summary(tiny_bundle: Path, tmp_path: Path) -> None:
    out, stats = tmp_path / "new" / "pictures", tmp_path / "stats.json"
    done = generate(tiny_bundle, out, "--class", "Cat-Face", "--class", "2", "-n", 2, "--seed", 3, "--json", stats)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "cat-face-seed3-0.png",
        "cat-face-seed3-1.png",
        "flag-seed3-2.png",
        "flag-seed3-3.png",
    ]
    assert "lossy; exact with rule='lossless'" in done.stdout
    assert "tokens per target pass" in done.stdout
    report = json.loads(stats.read_text())
    assert (report["images"], report["lossy"], len(report["per_image"])) == (4, True, 4)
    assert len(report["per_image"][0]["tokens"]) == 16


def test_a_picture_can_be_made_again_from_its_parameters(tiny_bundle: Path, tmp_path: Path) -> None:
    options = ["--rule", "uniform", "--delta", 1.3, "--draft-length", 4, "--temperature", 1.2, "--top-k", 6]
    assert generate(tiny_bundle, tmp_path / "a", "-c", "hand", "-n", 3, "--seed", 8, *options).returncode == 0
    made = read_parameters(tmp_path / "a" / "hand-seed8-2.png")
    assert (made["class"], made["rule"], made["delta"]) == ("hand", "uniform", 1.3)
    again = [
        *("-c", made["class_id"], "--seed", made["seed"], "--first-index", made["index"], "--rule", made["rule"]),
        *("--delta", made["delta"], "--draft-length", made["draft_length"], "--temperature", made["temperature"]),
        *("--top-k", made["top_k"], "--cfg", made["cfg_scale"]),
    ]
    assert generate(tiny_bundle, tmp_path / "one.png", *again).returncode == 0
    first, second = (np.asarray(Image.open(tmp_path / name)) for name in ("a/hand-seed8-2.png", "one.png"))
    np.testing.assert_array_equal(first, second)


def test_a_drift_that_is_not_known_is_called_so(tiny_bundle: Path, tmp_path: Path) -> None:
    rule = ["--rule", "lantern++", "--lantern-k", 3, "--resampling", "native"]
    done = generate(tiny_bundle, tmp_path / "a.png", "-c", "hand", *rule)
    assert done.returncode == 0, done.stderr
    assert "not known for this rule" in done.stdout
    assert "nan" not in done.stdout


def test_a_dynamic_tree_of_a_chosen_size(tiny_bundle: Path, tmp_path: Path) -> None:
    tree = ["--tree", "dynamic", "--draft-length", 3, "--tree-branches", 2]
    done = generate(tiny_bundle, tmp_path / "a.png", "-c", "hand", *tree, "--tree-nodes", 6)
    assert done.returncode == 0, done.stderr
    made = read_parameters(tmp_path / "a.png")
    assert (made["tree_nodes"], made["tree_branches"]) == (6, 2)
    refused = generate(tiny_bundle, tmp_path / "b.png", "-c", "hand", *tree, "--tree-nodes", 2)
    assert refused.returncode == 2
    assert "tree_nodes = 2: too few for the 3 levels" in refused.stderr


def test_a_grid_and_json_on_stdout(tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = ["-c", 0, "-c", 1, "-n", 2, "--grid", "--rule", "lossless", "--json", "-"]
    done = generate(tiny_bundle, tmp_path / "g.png", *arguments)
    assert done.returncode == 0, done.stderr
    assert Image.open(tmp_path / "g.png").size == (2 * 8 + 2, 2 * 8 + 2)
    assert json.loads(done.stdout)["lossy"] is False
    assert len(read_parameters(tmp_path / "g.png")) == 4


def test_the_papers_schedule_is_a_flag_away(tiny_bundle: Path, tmp_path: Path) -> None:
    assert generate(tiny_bundle, tmp_path / "x.png", "-c", 0, "--floor", "none").returncode == 0
    assert read_parameters(tmp_path / "x.png")["floor"] is None


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["-c", "cat-fase"], ["--class 'cat-fase'", "Did you mean cat-face"]),
        (["-c", "5"], ["--class '5'", "0 to 4"]),
        (["-c", "0", "-n", "0"], ["images_per_prompt = 0", "at least 1"]),
        (["-c", "0", "--temperature", "-1"], ["temperature = -1.0", "greater than or equal to 0"]),
        (["-c", "0", "--top-p", "1.5"], ["top_p = 1.5", "less than or equal to 1"]),
        (["-c", "0", "--delta", "0"], ["delta = 0.0", "greater than 0"]),
        (["-c", "0", "--draft-length", "0"], ["draft_length = 0", "greater than or equal to 1"]),
        (["-c", "0", "--draft-length", "9"], ["draft_length = 9", "at most 8", "--max-draft"]),
        (["-c", "0", "--rule", "fast"], ["rule = 'fast'", "lossless, cool"]),
        (["-c", "0", "--floor", "x"], ["--floor 'x'", "or none"]),
        (["-c", "0", "--backend", "trtx"], ["backend = 'trtx'", "ort-cpu"]),
        (["-c", "0", "--seed", "-4"], ["seed = -4"]),
        (["-c", "0", "--rule", "lossless", "--delta", "3"], ["--delta", "'lossless' does not read it", "cool, linear"]),
    ],
)
def test_mistakes_are_one_message_and_leave_nothing(
    tiny_bundle: Path, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    done = generate(tiny_bundle, tmp_path / "new" / "pictures", *arguments)
    assert done.returncode == 2
    assert done.stderr.strip().startswith("error: ")
    assert done.stderr.count("error: ") == 1
    assert "Traceback" not in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "new").exists()


def test_an_automatic_draft_length_is_printed_stored_and_kept(tiny_bundle: Path, tmp_path: Path) -> None:
    lengths = []
    for name in ("a", "b"):
        done = generate(tiny_bundle, tmp_path / f"{name}.png", "-c", 0, "--draft-length", "auto", "--rule", "lossless")
        assert done.returncode == 0, done.stderr
        lengths.append(read_parameters(tmp_path / f"{name}.png")["draft_length"])
        assert f"draft length {lengths[-1]}: " in done.stderr
    assert lengths[0] == lengths[1]
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    done = generate(tiny_bundle, tmp_path / "c.png", "-c", 0, "--draft-length", "long")
    assert (done.returncode, (tmp_path / "c.png").exists()) == (2, False)
    assert "'long' is neither" in done.stderr


def test_a_batch_shows_how_many_share_its_passes(tiny_bundle: Path, tmp_path: Path) -> None:
    done = generate(
        tiny_bundle, tmp_path / "p", "-c", 0, "-n", 5, "--batch-size", 3, "--rule", "lossless", "--json", tmp_path / "s"
    )
    assert "pictures share a target pass" in done.stdout
    report = json.loads((tmp_path / "s").read_text())
    shared = report["images_per_pass"]
    # Two batches: each starts full and only ever loses pictures, every one of which counts its own passes.
    second = next(i for i in range(1, len(shared)) if shared[i] > shared[i - 1] or shared[i - 1 : i + 1] == [3, 2])
    assert (shared[0], max(shared[second:])) == (3, 2)
    assert sum(shared) == sum(image["target_passes"] for image in report["per_image"])
    assert report["tokens_per_second"] == pytest.approx(5 * 16 / report["seconds"])
    assert report["images_per_minute"] == pytest.approx(5 * 60 / report["seconds"])


def test_one_file_for_two_pictures_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    done = generate(tiny_bundle, tmp_path / "x.png", "-c", 0, "-n", 2)
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert "Add --grid" in done.stderr


def test_a_folder_that_can_not_be_written_is_named_first(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = generate(tiny_bundle, tmp_path / "file" / "pictures", "-c", 0)
    assert done.returncode == 2
    assert f"--out {tmp_path / 'file' / 'pictures'}: can't be written" in done.stderr


def test_a_report_that_can_not_be_written_is_named_before_anything_is_drawn(tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = generate(tiny_bundle, tmp_path / "new", "-c", 0, "--json", tmp_path / "file" / "stats.json")
    assert done.returncode == 2
    assert f"--json {tmp_path / 'file'}: can't be written" in done.stderr
    assert not (tmp_path / "new").exists()


def test_pictures_of_classes_in_any_script_are_named_by_them(tiny_checkpoints: Path, tmp_path: Path) -> None:
    (tmp_path / "names.json").write_text(json.dumps(["[/red]", "猫", "☃", "Ça va", "x" * 300]))
    folders = (tiny_checkpoints / part for part in ("target", "image_tokenizer", "draft"))
    build_bundle(BuildRequest(*folders, class_names=tmp_path / "names.json"), tmp_path / "bundle")
    done = generate(tmp_path / "bundle", tmp_path / "p", *(option for i in range(5) for option in ("-c", i)))
    assert done.returncode == 0, done.stderr
    names = {f"{name}-seed0-{i}.png" for i, name in enumerate(["red", "猫", "class-2", "ça-va", "x" * 50])}
    assert {path.name for path in (tmp_path / "p").iterdir()} == names
    assert "[/red]" in coolsd("inspect", tmp_path / "bundle", "--classes").stdout


def test_a_damaged_bundle_is_named(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_bundle, tmp_path / "copy"))
    (copy / "target.onnx.data").write_bytes(b"")
    done = generate(copy, tmp_path / "pictures", "-c", 0)
    assert done.returncode == 2
    assert "target.onnx.data: 0 bytes" in done.stderr
    assert not (tmp_path / "pictures").exists()


def test_ctrl_c_stops_with_one_message_and_leaves_nothing(tiny_bundle: Path, tmp_path: Path) -> None:
    arguments = ["generate", str(tiny_bundle), "-c", "0", "-n", "20000", "--out", str(tmp_path / "new" / "p")]
    # A test runner in the background may have been told to ignore Ctrl-C, and children inherit that.
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while not (tmp_path / "new" / "p").exists():  # made once the bundle is loaded
        assert time.monotonic() < deadline
        time.sleep(0.02)
    stderr = ""
    try:
        # As people do: a compiled module that is just being loaded may swallow one.
        while process.poll() is None and time.monotonic() < deadline + 60:
            os.kill(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                _, stderr = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 2
    assert "error: stopped by Ctrl-C; nothing was written." in stderr
    assert "Traceback" not in stderr
    assert not (tmp_path / "new").exists()

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from coolsd_trt.tools.profiling.report import read_report


def profile(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coolsd_trt.tools.cli", "profile", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.fixture(scope="module")
def profiled(tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with report.json, trace.json and page.html of a run of 6 pictures in batches of 3, and the printout."""
    out = tmp_path_factory.mktemp("profile") / "new"
    files = ["--json", out / "report.json", "--trace", out / "trace.json", "--html", out / "page.html"]
    done = profile(tiny_bundle, "-n", 6, "--batch-size", 3, "--draft-length", 3, "--rule", "lossless", *files)
    assert done.returncode == 0, done.stderr
    return out, done.stdout


def test_the_report_is_of_the_run_alone(profiled: tuple[Path, str]) -> None:
    out, printed = profiled
    report = read_report(out / "report.json")
    rounds = len(report.speed.round_ms)
    passes = sum(report.speed.images_per_pass)
    # Six prefills, and every round of every image.
    assert sum(report.acceptance.histogram) == passes - 6
    assert rounds == len(report.speed.images_per_pass) - 2
    assert report.acceptance.accepted_length == pytest.approx(6 * 16 / passes)
    assert max(report.speed.images_per_pass) == 3
    assert all(len(column) == rounds for column in report.part_ms.values())
    total = sum(sum(column) for column in report.part_ms.values())
    assert total == pytest.approx(sum(report.speed.round_ms), rel=1e-2)
    assert {"draft/engine", "target/engine", "host/verify", "host/warp", "host/cfg"} <= set(report.part_ms)
    assert len(report.costs.target) == len(report.costs.floor or []) == 6
    assert report.memory.peak > report.memory.base
    assert all(sentence in printed.replace("\n", " ") for sentence in report.verdict)


def test_the_trace_has_every_round(profiled: tuple[Path, str]) -> None:
    events = json.loads((profiled[0] / "trace.json").read_text())["traceEvents"]
    rounds = [event for event in events if event["name"] == "round"]
    assert len(rounds) == len(read_report(profiled[0] / "report.json").speed.round_ms)
    assert sum(event["name"] == "decode" for event in events) == 6


def test_the_page_is_whole_and_needs_nothing_else(profiled: tuple[Path, str]) -> None:
    page = (profiled[0] / "page.html").read_text()
    open_tags: list[str] = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag not in ("meta", "br"):
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Checker().feed(page)
    assert open_tags == []
    assert page.count("<svg") == 7
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    assert "nan" not in page.casefold().replace("nanoseconds", "")


def test_two_profiles_side_by_side(profiled: tuple[Path, str], tmp_path: Path) -> None:
    file = profiled[0] / "report.json"
    done = profile("--compare", file, file)
    assert done.returncode == 0, done.stderr
    assert re.search(r"round, ms\s+(\S+)\s+\1\s+1\.000", done.stdout)
    (tmp_path / "other.json").write_text('{"schema_version": 1}')
    done = profile("--compare", file, tmp_path / "other.json")
    assert done.returncode == 2
    assert "other.json: 'setup' is wrong" in done.stderr


def test_plain_autoregression_can_be_profiled(tiny_bundle: Path, tmp_path: Path) -> None:
    done = profile(tiny_bundle, "--rule", "ar", "--cfg", 1, "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    report = read_report(tmp_path / "r.json")
    assert report.setup.tokens_per_pass == 1
    assert report.acceptance.accepted_length == 1
    assert report.verdict[0].startswith("Nothing is drafted")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "BUNDLE is missing"), (["--compare", "no.json", "no.json"], "no.json: can't be read")],
)
def test_mistakes_are_one_message(arguments: list[str], words: str) -> None:
    done = profile(*arguments)
    assert (done.returncode, done.stderr.count("error: ")) == (2, 1)
    assert words in done.stderr

"""Writers that fail, are killed, or meet."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from coolsd_trt.runtime import InputError
from coolsd_trt.runtime.files import replacing_file, replacing_folder, sweep


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    with replacing_file(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), names(tmp_path)) == ("new", ["a.txt"])


@pytest.mark.parametrize("replacing", [replacing_file, replacing_folder])
def test_a_full_disk_names_what_was_to_be_written(tmp_path: Path, replacing: object) -> None:
    words = r"out: can't be written \(No space left on device\)"
    with pytest.raises(InputError, match=words), replacing(tmp_path / "out"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == []


def test_a_file_that_the_block_reads_keeps_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replacing_folder(tmp_path / "out"):
        (tmp_path / "weights").read_bytes()


def test_a_place_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for replacing, out in (
        (replacing_folder, "file/out"),
        (replacing_folder, "file/a/out"),
        (replacing_file, "no/out"),
    ):
        with pytest.raises(InputError, match=f"{out}: can't be written"), replacing(tmp_path / out):
            pass
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("replacing, name", [(replacing_file, "x" * 255), (replacing_folder, "猫" * 85)])
def test_the_longest_names_a_file_system_has(tmp_path: Path, replacing: object, name: str) -> None:
    with replacing(tmp_path / name):
        pass
    assert names(tmp_path) == [name]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "real").mkdir()
    with replacing_folder(tmp_path / "link") as temporary:
        (temporary / "new").touch()
    assert (tmp_path / "link").is_symlink()
    assert names(tmp_path / "real") == ["new"]


def test_what_a_killed_writer_left_is_swept_and_a_living_ones_work_is_not(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from coolsd_trt.runtime.files import *\n"
        "with replacing_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'half').touch(); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path / "out"], check=False)
    assert len(names(tmp_path)) == 1
    with replacing_folder(tmp_path / "other") as living:
        sweep(tmp_path)
        assert names(tmp_path) == [living.name]


def test_writers_of_one_folder_meet_and_one_of_them_wins(tmp_path: Path) -> None:
    out, together, failures = tmp_path / "out", threading.Barrier(8), []

    def write(which: int) -> None:
        try:
            for turn in range(20):
                with replacing_folder(out) as temporary:
                    (temporary / "a").write_text(f"{which} {turn}")
                    (temporary / "b").write_text(f"{which} {turn}")
                    together.wait()
                    sweep(tmp_path)
        except Exception as error:
            failures.append(error)
            together.abort()

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert (out / "a").read_text() == (out / "b").read_text()
    assert names(tmp_path) == ["out"]

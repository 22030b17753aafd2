from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.tools.profiling.bandwidth import bytes_of_a_thread
from coolsd_trt.tools.profiling.gemm_floor import GemmFloor
from coolsd_trt.tools.profiling.memory import bytes_read, cache_bytes, resident


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4"])
def test_the_floor_has_exactly_the_products_of_the_target(tmp_path: Path, precision: str) -> None:
    source = tiny.make_checkpoints(tmp_path / "c")
    request = BuildRequest(source / "target", source / "image_tokenizer", precision=precision, neighbors=0)  # type: ignore[arg-type]
    build_bundle(request, tmp_path / "b")
    block = [(96, 32), (32, 32), (64, 32), (64, 32), (32, 64)]  # qkv, o, gate, up, down
    with GemmFloor(Bundle.open(tmp_path / "b"), 1) as floor:
        assert floor.shapes == [*block, *block, (8, 32)]
        for rows, tokens in ((2, 1), (4, 3), (2, 1)):
            floor.run(rows, tokens)


def test_cache_bytes_are_those_of_the_engine(tiny_bundle: Path) -> None:
    bundle = Bundle.open(tiny_bundle)
    spec = bundle.manifest.target
    engine = OrtTransformer(bundle.file(spec.files[0]), spec, 1)
    engine.allocate(4, 21)
    assert cache_bytes(spec, 4, 21) == sum(cache.nbytes for cache in engine._caches.values())
    engine.close()


def test_a_pass_reads_everything_but_the_embedding(tiny_bundle: Path) -> None:
    spec = Bundle.open(tiny_bundle).manifest.target
    table = (8 + 6) * 32 * 4
    read = sum(record.size for record in spec.files) - table
    assert bytes_read(spec, 8 + 6) == read


def test_weights_in_fp16_are_read_as_float32_on_a_cpu(tmp_path: Path) -> None:
    source, read = tiny.make_checkpoints(tmp_path / "c"), {}
    for precision in ("fp32", "fp16"):
        parts = (source / "target", source / "image_tokenizer")
        build_bundle(BuildRequest(*parts, precision=precision, neighbors=0), tmp_path / precision)  # type: ignore[arg-type]
        spec = Bundle.open(tmp_path / precision).manifest.target
        graph = spec.files[0].size * (2 if precision == "fp16" else 1)  # which at this size is no small part
        read[precision] = bytes_read(spec, 8 + 6) - graph
    assert read["fp16"] == read["fp32"]


def test_measuring_bandwidth_takes_a_gigabyte_at_most() -> None:
    assert bytes_of_a_thread(2) == 256 << 20
    for threads in (4, 7, 64, 192, 1024):
        size = bytes_of_a_thread(threads)
        assert size % 4 == 0
        assert 0.99 * 2**30 < threads * size <= 2**30


def test_resident_memory_follows_what_is_touched() -> None:
    before = resident()[0]
    held = np.ones(64 << 20, dtype=np.uint8)
    now, peak = resident()
    assert now - before > 50 << 20
    del held
    assert peak >= now

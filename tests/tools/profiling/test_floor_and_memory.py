from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
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
    assert bytes_read(spec, 8 + 6) == sum(record.size for record in spec.files) - table


def test_resident_memory_follows_what_is_touched() -> None:
    before = resident()[0]
    held = np.ones(64 << 20, dtype=np.uint8)
    now, peak = resident()
    assert now - before > 50 << 20
    del held
    assert peak >= now

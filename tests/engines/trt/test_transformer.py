"""TensorRT engines on a fake GPU: addresses, aliasing, order of copies, graphs, and who frees what."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.ort import OrtTransformer
from coolsd_trt.engines.trt.plan import Plan
from coolsd_trt.engines.trt.profiles import profiles_of
from coolsd_trt.engines.trt.transformer import TrtTransformer
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError, BundleError
from coolsd_trt.runtime.spans import recording
from coolsd_trt.runtime.stepping import chain_step
from fake_gpu import FakeContext, FakeCuda, FakeTrt


class Rig:
    """A target of the tiny bundle on a fake GPU."""

    def __init__(self, bundle: Bundle, folder: Path, capacity: int = 10**9, rtx: bool = True) -> None:
        self.spec = bundle.manifest.target
        self.onnx = bundle.file(self.spec.files[0])
        self.cuda = FakeCuda(capacity)
        self.trt = FakeTrt(self.cuda, rtx=rtx)
        file = folder / "target.plan"
        file.write_text(str(self.onnx))
        profiles = profiles_of(bundle.manifest, "target", max_batch=2)
        self.engine = TrtTransformer(
            self.cuda, Plan(self.trt, self.cuda, file, self.spec, profiles), self.spec, max_batch=2
        )

    def step(self, rows: int, length: int, start: int = 0) -> np.ndarray:
        return chain_step(self.engine, tokens(rows, length), np.full(rows, start)).logits.copy()

    def context(self, rows: int, length: int) -> FakeContext:
        """The context of one shape of step."""
        [found] = [context for context in self.trt.contexts if context.shapes["input_ids"] == (rows, length)]
        return found


def tokens(rows: int, length: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 8, (rows, length))


@pytest.fixture
def rig(tiny_bundle: Path, tmp_path: Path) -> Rig:
    made = Rig(Bundle.open(tiny_bundle), tmp_path)
    made.engine.allocate(4, 20)
    return made


def test_steps_compute_what_the_cpu_computes(rig: Rig) -> None:
    reference = OrtTransformer(rig.onnx, rig.spec, threads=1)
    reference.allocate(4, rig.spec.positions)
    for length, start in ((1, 0), (6, 1), (1, 3), (1, 4), (1, 5), (6, 6), (6, 8), (6, 8)):
        expected = chain_step(reference, tokens(4, length), np.full(4, start)).logits
        np.testing.assert_allclose(rig.step(4, length, start), expected, atol=1e-6)
    assert rig.cuda.names().count("launch") == 5


def test_past_and_present_are_one_address(rig: Rig) -> None:
    rig.step(2, 1)
    for context in rig.trt.contexts:
        for i in range(rig.spec.layers):
            for kind in ("key", "value"):
                assert context.addresses[f"past_{kind}_{i}"] == context.addresses[f"present_{kind}_{i}"]
    caches = {address for name, address in rig.context(2, 1).addresses.items() if name.startswith("past_")}
    assert len(caches) == 2 * rig.spec.layers
    assert all(address % 16 == 0 for address in caches)


def test_without_a_kv_cache_update_two_buffers_change_places(tiny_checkpoints: Path, tmp_path: Path) -> None:
    parts = (tiny_checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    build_bundle(BuildRequest(*parts, max_draft_length=8, lowering="portable"), tmp_path / "b")
    rig = Rig(Bundle.open(tmp_path / "b"), tmp_path, rtx=False)
    rig.engine.allocate(4, 20)
    reference = OrtTransformer(rig.onnx, rig.spec, threads=1)
    reference.allocate(4, rig.spec.positions)
    for length, start in ((1, 0), (6, 1), (1, 3), (1, 4), (1, 5), (1, 6), (6, 7), (6, 9), (6, 9)):
        expected = chain_step(reference, tokens(4, length), np.full(4, start)).logits
        np.testing.assert_allclose(rig.step(4, length, start), expected, atol=1e-6)
    there, back = (context.addresses for context in rig.trt.contexts if context.shapes["input_ids"] == (4, 6))
    for name in (name.removeprefix("past_") for name in there if name.startswith("past_")):
        assert there[f"past_{name}"] == back[f"present_{name}"] != there[f"present_{name}"] == back[f"past_{name}"]
    assert len(rig.cuda.graphs) == 4
    rig.engine.close()
    assert rig.cuda.device == {}


def test_a_smaller_batch_binds_the_same_addresses_with_a_smaller_shape(rig: Rig) -> None:
    rig.step(4, 6)
    rig.step(2, 6)
    full, half = rig.context(4, 6), rig.context(2, 6)
    assert half.addresses == full.addresses
    assert half.runs[-1]["past_key_0"][0] == 2
    assert half.runs[-1]["mask"] == (2, 1, 6, rig.spec.positions)


def test_inputs_go_up_before_the_run_and_outputs_come_down_after(rig: Rig) -> None:
    del rig.cuda.log[:]
    rig.step(2, 6)
    calls = [name for name in rig.cuda.names() if name != "malloc"]
    assert calls == ["upload"] * 4 + ["run"] + ["download"] * 2 + ["synchronize"]
    sizes = [entry[3] for entry in rig.cuda.log if entry[0] == "upload"]
    assert sizes == [2 * 6 * 8, 2 * 6 * 8, 2 * 6 * rig.spec.positions, 2 * 8]


def test_the_second_step_of_a_shape_records_a_graph_and_later_ones_launch_it(rig: Rig) -> None:
    rig.step(2, 6)
    for expected in (["capture", "launch"], ["launch"], ["launch"]):
        del rig.cuda.log[:]
        rig.step(2, 6)
        assert rig.cuda.names() == [*expected, "synchronize"], "nothing else where no one profiles"
    rig.step(2, 1)
    rig.step(2, 1)
    assert len(rig.cuda.graphs) == 2


def test_a_recorded_step_is_timed_on_the_gpu_and_waits_no_more_often(rig: Rig) -> None:
    for expected in (["upload"] * 4 + ["run"] + ["download"] * 2, ["launch"], ["launch"]):
        rig.engine._reserve(2, 6)
        del rig.cuda.log[:]
        with recording() as recorder:
            rig.step(2, 6)
        calls = [name for name in rig.cuda.names() if name not in ("malloc", "capture")]
        assert calls == ["record", *expected, "record", "synchronize"]
        copies, gpu, engine = recorder.spans
        assert [span.name for span in recorder.spans] == ["copies", "gpu", "engine"]
        assert engine.start <= gpu.start < gpu.end <= engine.end
        assert gpu.end - gpu.start == rig.cuda.elapsed(1, 2)
        assert (copies.depth, gpu.depth, engine.depth) == (0, 1, 0)
    rig.engine.close()
    assert rig.cuda.events == {}


def test_graphs_are_recorded_again_when_memory_moves(rig: Rig) -> None:
    for _ in range(2):
        rig.step(2, 1)
    decode = rig.context(2, 1)
    old = decode.addresses["logits"]
    rig.step(4, 6)  # needs larger staging: the first graph holds stale addresses
    assert decode.addresses["logits"] != old
    assert not rig.cuda.graphs
    del rig.cuda.log[:]
    rig.step(2, 1)
    assert rig.cuda.names().count("run") == 1
    rig.step(2, 1)
    assert len(rig.cuda.graphs) == 1


def test_profiles_are_chosen_by_the_step_and_share_one_workspace(rig: Rig) -> None:
    rig.step(2, 1)
    rig.step(2, 2)
    rig.step(2, 3)
    rig.step(2, 9)
    assert [context.profile for context in rig.trt.contexts] == [0, 0, 1, 1]
    assert len({context.memory for context in rig.trt.contexts}) == 1
    with pytest.raises(BackendError, match=r"a step of 10 tokens was asked; the plan takes up to 9.*--max-draft"):
        rig.step(2, 10)


def test_a_context_keeps_the_shape_its_graph_was_recorded_with(rig: Rig) -> None:
    for _ in range(2):
        for rows, length in ((4, 6), (2, 6), (2, 1)):
            rig.step(rows, length)
    assert len(rig.trt.contexts) == len(rig.cuda.graphs) == 3
    rig.step(4, 6)
    assert [len(context.runs) for context in rig.trt.contexts] == [2, 2, 2], "once to warm up, once recorded"


def test_without_graphs_steps_run_call_by_call(rig: Rig) -> None:
    rig.trt.capturable = False
    first = [rig.step(2, 6) for _ in range(3)]
    assert rig.cuda.names().count("run") == 3
    assert not rig.cuda.graphs
    np.testing.assert_array_equal(first[0], first[2])


def test_a_graph_that_can_not_be_recorded_is_said_once(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(work: object) -> None:
        raise BackendError("CUDA can't record a graph: cudaErrorStreamCaptureUnsupported.")

    monkeypatch.setattr(rig.cuda, "capture", refuse)
    rig.step(2, 6)
    with pytest.warns(RuntimeWarning, match="without CUDA graphs, slower: CUDA can't record"):
        rig.step(2, 6)
    rig.step(2, 6)


def test_rows_move_within_every_cache(rig: Rig) -> None:
    rig.step(4, 6)
    expected = rig.step(4, 1, start=6)[3]
    rig.engine.copy_row(3, 0)
    moves = [entry for entry in rig.cuda.log if entry[0] == "move"]
    assert len(moves) == 2 * rig.spec.layers
    row = rig.spec.kv_heads * rig.spec.positions * rig.spec.head_dim * 4
    assert all((source - destination, size) == (3 * row, row) for _, destination, source, size in moves)
    ids = tokens(4, 1)[[3, 1, 2, 3]]
    np.testing.assert_array_equal(chain_step(rig.engine, ids, np.full(4, 6)).logits[0], expected)


def test_entries_of_one_row_move_together_in_every_cache(rig: Rig) -> None:
    reference = OrtTransformer(rig.onnx, rig.spec, threads=1)
    reference.allocate(4, rig.spec.positions)
    for engine in (reference, rig.engine):
        chain_step(engine, tokens(4, 7), np.zeros(4, int))
        engine.compact(2, np.array([2, 4, 5, 6]), 2)
    moves = [entry for entry in rig.cuda.log if entry[0] == "move_strided"]
    assert len(moves) == 3 * rig.spec.kv_heads * 2 * rig.spec.layers, "the first entry lies where it belongs"
    for name, address in rig.engine._caches.items():
        expected = reference._caches[name]
        found = rig.cuda.device[rig.engine._block][address - rig.engine._block :][: expected.nbytes]
        np.testing.assert_allclose(found.view(np.float32).reshape(expected.shape), expected, atol=1e-6)


def test_a_plan_of_another_graph_is_told_by_its_tensors(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle, cuda = Bundle.open(tiny_bundle), FakeCuda()
    manifest = bundle.manifest
    (tmp_path / "target.plan").write_text(str(bundle.file(manifest.draft.files[0])))
    profiles = profiles_of(manifest, "target", max_batch=2)
    with pytest.raises(BundleError, match=r"target\.plan: it is a plan of another graph: it differs in features"):
        Plan(FakeTrt(cuda), cuda, tmp_path / "target.plan", manifest.target, profiles)
    assert cuda.device == {}


def test_everything_is_freed_exactly_once(rig: Rig) -> None:
    for length in (1, 1, 6, 6):
        rig.step(4, length)
    rig.engine.allocate(2, 20)  # fits what is there
    rig.engine.close()
    assert (rig.cuda.device, rig.cuda.pinned, rig.cuda.graphs) == ({}, {}, [])
    rig.engine.close()


def test_growing_frees_the_old_caches(tiny_bundle: Path, tmp_path: Path) -> None:
    rig = Rig(Bundle.open(tiny_bundle), tmp_path)
    rig.engine.allocate(2, 20)
    rig.step(2, 1)
    count = len(rig.cuda.device)
    rig.engine.allocate(4, 20)
    assert len(rig.cuda.device) == count
    assert rig.engine.cache_length == rig.spec.positions


def test_out_of_memory_names_what_was_asked_and_what_to_lower(tiny_bundle: Path, tmp_path: Path) -> None:
    rig = Rig(Bundle.open(tiny_bundle), tmp_path, capacity=20_000)
    with pytest.raises(BackendError, match=r"the KV cache of 4 rows x 25 positions needs 0\.00 GB.*Lower --batch-size"):
        rig.engine.allocate(4, 20)
    rig.engine.close()
    assert rig.cuda.device == {}


def test_more_pictures_than_the_plans_take_are_refused(rig: Rig) -> None:
    with pytest.raises(BackendError, match=r"a batch of 3 pictures was asked; the plans take 2.*--max-batch"):
        rig.engine.allocate(6, 20)
    with pytest.raises(BackendError, match=r"26 positions was asked; the plan has 25"):
        rig.engine.allocate(2, 26)


def test_compiled_kernels_are_kept_for_the_next_start(tiny_bundle: Path, tmp_path: Path) -> None:
    def start() -> list[bytes]:
        rig = Rig(Bundle.open(tiny_bundle), tmp_path)
        rig.engine.allocate(2, 20)
        rig.step(2, 1)
        rig.engine.close()
        return rig.trt.kernels.given

    file = tmp_path / "target.kernels"
    assert start() == []
    kept = file.read_bytes()
    assert start() == [b"kernels"]
    assert file.read_bytes() == kept
    for damage in (kept[:-1], b"#" + kept[1:], b""):
        file.write_bytes(damage)
        assert start() == [], "what is damaged is never given to TensorRT"
        assert file.read_bytes() == kept
    file.unlink()
    file.mkdir()  # can't be written
    assert start() == []
    assert {path.name for path in tmp_path.iterdir()} == {"target.plan", "target.kernels"}


def test_the_enterprise_flavour_has_no_runtime_configuration(tiny_bundle: Path, tmp_path: Path) -> None:
    rig = Rig(Bundle.open(tiny_bundle), tmp_path, rtx=False)
    rig.engine.allocate(2, 20)
    rig.step(2, 6)
    rig.step(2, 6)
    assert len(rig.cuda.graphs) == 1

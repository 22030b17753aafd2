"""A chain in one engine call: what is drafted, and from which law, is what the stepwise draft would have drafted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tiny
from chains import SETTINGS, chain_input, mid_picture, require_same_drafts
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import PrecisionName
from coolsd_trt.engines.ort_draft import OrtDraft
from coolsd_trt.engines.ort_opener import OrtOpener
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError, Pipeline, SamplingConfig, SpeculativeConfig
from coolsd_trt.runtime.drafting import FusedDrafter, StaticDrafter, static_drafter
from coolsd_trt.runtime.sampling import sample_token
from coolsd_trt.runtime.tree import Tree


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return built(tmp_path_factory.mktemp("chains"))


@pytest.fixture(scope="module", params=["fp32", "int8", "heads of 8"])
def any_bundle(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """heads of 8: too narrow for GroupQueryAttention, so its chains attend as every backend does."""
    folder = tmp_path_factory.mktemp("chains")
    return built(folder, heads=4) if request.param == "heads of 8" else built(folder, precision=request.param)


def built(folder: Path, heads: int = 2, precision: PrecisionName = "fp32", tensorrt: bool = False) -> Bundle:
    tiny.make_checkpoints(folder, heads=heads, kv_heads=heads, vocab=64)
    parts = (folder / name for name in ("target", "image_tokenizer", "draft"))
    options = {"max_draft_length": 9, "neighbors": 0, "precision": precision, "tensorrt": tensorrt}
    build_bundle(BuildRequest(*parts, **options), folder / "bundle")
    return Bundle.open(folder / "bundle")


@pytest.fixture(scope="module")
def draft(bundle: Bundle) -> OrtDraft:
    return open_draft(bundle)


def open_draft(bundle: Bundle) -> OrtDraft:
    spec = bundle.manifest.draft
    assert spec is not None
    draft = OrtOpener(bundle, 1).transformer("draft", spec)
    assert isinstance(draft, OrtDraft)
    return draft


@pytest.mark.parametrize("length", [1, 4, 8])
def test_the_same_tokens_from_the_same_laws(any_bundle: Bundle, length: int) -> None:
    for settings in SETTINGS:
        require_same_drafts(open_draft(any_bundle), any_bundle.info, length, SamplingConfig(**settings))


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_token_is_the_draw_from_the_law_that_is_returned(bundle: Bundle, draft: OrtDraft, top_k: int) -> None:
    draft.allocate(100, 40)
    uniforms = np.random.default_rng(0).random((6, 50))
    uniforms[:, 0], uniforms[:, 1] = 0, np.nextafter(1, 0)
    out = draft.chain(chain_input(bundle.info, uniforms, top_k=top_k))
    for token, q, u in zip(out.tokens.ravel(), out.q.reshape(300, -1), uniforms.ravel(), strict=True):
        assert token == sample_token(q, u)
        assert q[token] > 0
        assert abs(q.sum() - 1) < 1e-12
        assert (q > 0).sum() == (top_k or len(q))


def test_only_what_is_used_is_opened(bundle: Bundle) -> None:
    draft = open_draft(bundle)
    assert draft.longest_chain == 8  # of the 9 there is cache room for
    expected = draft._chain_session
    assert expected is not None
    draft.allocate(2, 40)
    draft.chain(chain_input(bundle.info, np.zeros((bundle.info.speculative.draft_length, 1))))
    assert draft._chain_session is expected
    assert draft._session is None
    draft.chain(chain_input(bundle.info, np.zeros((2, 1))))
    assert draft._chain_session is not expected
    draft.close()
    assert draft._chain_session is None


def test_weights_are_on_disk_once(bundle: Bundle) -> None:
    spec = bundle.manifest.draft
    assert spec is not None
    graphs = {path.name for path in bundle.path.glob("draft*")} - {spec.files[1].name, "draft_sampler.onnx"}
    assert len(graphs) == 8 + 1 + (spec.gqa is not None)
    for name in graphs:
        for tensor in onnx.load(bundle.path / name, load_external_data=False).graph.initializer:
            stored = {entry.key: entry.value for entry in tensor.external_data}
            assert stored.get("location") == spec.files[1].name or len(tensor.raw_data) < 4096


@pytest.mark.parametrize("precision", ["fp16", "int4"])
def test_what_onnxruntime_would_widen_at_every_step_has_no_chains(tmp_path: Path, precision: PrecisionName) -> None:
    bundle = built(tmp_path, precision=precision)
    assert bundle.manifest.draft is not None
    assert not bundle.manifest.draft.chains
    with Pipeline.load(bundle.path, "ort-cpu", threads=1) as pipeline:
        assert pipeline.generate([0], speculative=SpeculativeConfig(draft_length=3)).accepted_length > 1


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8", "int4", "bf16"])
def test_bundles_for_gpus_have_chains_of_floats_that_attend_as_every_backend_does(
    tmp_path: Path, precision: PrecisionName
) -> None:
    bundle = built(tmp_path, precision=precision, tensorrt=True)
    spec = bundle.manifest.draft
    assert spec is not None
    assert len(spec.gpu_chains) == (8 if precision in ("fp32", "fp16") else 0)
    for chain in spec.gpu_chains:
        model = onnx.load(bundle.file(chain), load_external_data=False)
        assert {domain.domain for domain in model.opset_import} == {""}
    if precision == "fp16":
        draft = OrtDraft(bundle.file(spec.files[0]), spec, [bundle.file(chain) for chain in spec.gpu_chains], threads=1)
        for settings in SETTINGS:
            require_same_drafts(draft, bundle.info, 4, SamplingConfig(**settings), tolerance=2e-2)


def test_who_drafts(draft: OrtDraft) -> None:
    sampling, chain = SamplingConfig(), Tree.chain
    assert isinstance(static_drafter(draft, chain(8), sampling), FusedDrafter)
    assert isinstance(static_drafter(draft, Tree.from_paths([[0], [0, 0]]), sampling), FusedDrafter)
    for tree, settings in ((chain(9), {}), (Tree.from_paths([[0], [1]]), {}), (chain(2), {"top_p": 0.9})):
        assert isinstance(static_drafter(draft, tree, SamplingConfig(**settings)), StaticDrafter)


@pytest.mark.parametrize("temperature", [0, 1])
def test_numbers_that_are_not_finite_are_refused(bundle: Bundle, draft: OrtDraft, temperature: float) -> None:
    sampling = SamplingConfig(temperature=temperature)
    draft.allocate(6, 40)
    batch = mid_picture(bundle.info, sampling)
    batch.features[...] = np.nan
    with pytest.raises(BackendError, match="not finite"):
        FusedDrafter(draft, 3, sampling).propose(batch, [3, 3, 3])


def test_pictures_are_the_same(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    def pictures(pipeline: Pipeline) -> list[np.ndarray]:
        config = SpeculativeConfig(rule="cool", delta=1.5, draft_length=4)
        return [
            pipeline.generate([0, 1, 2], seed=5, speculative=config, batch_size=2, **settings).tokens
            for settings in SETTINGS
        ]

    with Pipeline.load(bundle.path, "ort-cpu", threads=1) as pipeline:
        fused = pictures(pipeline)
        monkeypatch.setattr("coolsd_trt.runtime.pipeline.static_drafter", StaticDrafter)
        np.testing.assert_array_equal(fused, pictures(pipeline))

"""The written graphs, cached and batched as the runtime drives them, against the torch modules run in one go."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import TransformerSpec
from coolsd_trt.engines.ort import OrtImageDecoder, OrtTransformer, runs_gqa
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime.stepping import chain_step

torch = pytest.importorskip("torch", reason="parity is proved against torch modules: pip install 'coolsd-trt[torch]'")

TOLERANCE = 1e-4
GRID, VOCAB, DIM = 4, 40, 48
LENGTH = GRID * GRID
CLASSES = np.array([0, 3, 5])  # the last is the null class


@pytest.fixture(scope="module", params=["tensor_scatter", "portable", "gqa"])
def lowering(request: pytest.FixtureRequest) -> str:
    if request.param == "gqa" and not runs_gqa():
        pytest.skip("this onnxruntime's GroupQueryAttention has no query_seqlens")
    return request.param


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parity")
    tiny.make_checkpoints(folder, dim=DIM, layers=3, heads=3, kv_heads=3, ffn=80, vocab=VOCAB, grid=GRID, seed=3)
    return folder


@pytest.fixture(scope="module")
def bundle(checkpoints: Path, lowering: str) -> Bundle:
    out = checkpoints / f"bundle-{lowering}"
    parts = (checkpoints / name for name in ("target", "image_tokenizer", "draft"))
    # Every bundle has a gqa graph, too.
    build_bundle(BuildRequest(*parts, lowering="portable" if lowering == "portable" else "tensor_scatter"), out)
    return Bundle.open(out)


@pytest.fixture(scope="module")
def tokens() -> np.ndarray:
    return np.random.default_rng(0).integers(0, VOCAB, (len(CLASSES), LENGTH))


@pytest.fixture(scope="module")
def reference(checkpoints: Path, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Uncached passes: target logits and hidden at positions 0..T, draft features and logits at 0..T-1."""
    from coolsd_trt.tools.training.eagle import Draft, DraftConfig
    from coolsd_trt.tools.training.llamagen import Target, TargetConfig
    from safetensors.torch import load_file

    target_config = TargetConfig(
        dim=DIM,
        n_layer=3,
        n_head=3,
        head_dim=16,
        hidden_dim_ffn=80,
        vocab_size=VOCAB,
        num_classes=5,
        block_size=LENGTH,
    )
    target = Target.from_tensors(target_config, load_file(checkpoints / "target" / "model.safetensors"))
    draft_config = DraftConfig(
        hidden_size=DIM, intermediate_size=80, num_attention_heads=3, vocab_size=VOCAB, grid_size=GRID
    )
    draft = Draft.from_tensors(draft_config, load_file(checkpoints / "draft" / "model.safetensors"))
    with torch.no_grad():
        logits, hidden = target(torch.from_numpy(CLASSES), torch.from_numpy(tokens))
        features = draft(hidden[:, :LENGTH], torch.from_numpy(tokens))
        draft_logits = target.output(features)
    named = {"logits": logits, "hidden": hidden, "draft_hidden": features, "draft_logits": draft_logits}
    return {name: value.numpy() for name, value in named.items()}


def open_graph(bundle: Bundle, spec: TransformerSpec, lowering: str) -> OrtTransformer:
    record = spec.gqa if lowering == "gqa" else spec.files[0]
    assert record is not None
    return OrtTransformer(bundle.file(record), spec, threads=1)


def open_target(bundle: Bundle, lowering: str) -> OrtTransformer:
    engine = open_graph(bundle, bundle.manifest.target, lowering)
    engine.allocate(len(CLASSES), LENGTH + 8)
    return engine


def sequence_ids(tokens: np.ndarray) -> np.ndarray:
    return np.concatenate([CLASSES[:, None] + VOCAB, tokens], axis=1)


@pytest.mark.parametrize("steps", [[LENGTH + 1], [1] * (LENGTH + 1), [1, 6, 6, 4], [9, 1, 1, 6]], ids=str)
def test_target(bundle: Bundle, lowering: str, tokens: np.ndarray, reference: dict, steps: list[int]) -> None:
    engine, ids, start = open_target(bundle, lowering), sequence_ids(tokens), 0
    for size in steps:
        out = chain_step(engine, ids[:, start : start + size], np.full(len(ids), start))
        for name in ("logits", "hidden"):
            expected = reference[name][:, start : start + size]
            np.testing.assert_allclose(getattr(out, name), expected, atol=TOLERANCE)
        start += size


def test_target_with_rows_of_different_lengths_and_rolled_back_tokens(
    bundle: Bundle, lowering: str, tokens: np.ndarray, reference: dict
) -> None:
    engine, ids = open_target(bundle, lowering), sequence_ids(tokens)
    lengths = np.zeros(len(ids), dtype=np.int64)
    rng = np.random.default_rng(1)
    ragged_rounds = 0
    for _ in range(8):
        ragged_rounds += len(set(lengths.tolist())) > 1
        size = int(rng.integers(1, 7))
        kept = np.minimum(rng.integers(1, size + 1, len(ids)), LENGTH + 1 - lengths)
        fed = rng.integers(0, VOCAB, (len(ids), size))  # rejected drafts: to be forgotten
        for row, count in enumerate(kept):
            fed[row, :count] = ids[row, lengths[row] : lengths[row] + count]
        out = chain_step(engine, fed, lengths)
        for row, count in enumerate(kept):
            expected = reference["logits"][row, lengths[row] : lengths[row] + count]
            np.testing.assert_allclose(out.logits[row, :count], expected, atol=TOLERANCE)
        lengths = np.minimum(lengths + kept, LENGTH)
    assert ragged_rounds >= 4


@pytest.mark.parametrize("steps", [[LENGTH], [1] * LENGTH, [3, 1, 1, 6, 5]], ids=str)
def test_draft(bundle: Bundle, lowering: str, tokens: np.ndarray, reference: dict, steps: list[int]) -> None:
    spec = bundle.manifest.draft
    assert spec is not None
    engine, start = open_graph(bundle, spec, lowering), 0
    engine.allocate(len(CLASSES), LENGTH + 8)
    for size in steps:
        span = slice(start, start + size)
        out = chain_step(engine, tokens[:, span], np.full(len(tokens), start), reference["hidden"][:, span])
        np.testing.assert_allclose(out.hidden, reference["draft_hidden"][:, span], atol=TOLERANCE)
        np.testing.assert_allclose(out.logits, reference["draft_logits"][:, span], atol=TOLERANCE)
        start += size


def test_image_decoder(bundle: Bundle, checkpoints: Path, tokens: np.ndarray) -> None:
    from coolsd_trt.tools.training.vq import VqConfig, VqTokenizer
    from safetensors.torch import load_file

    config = VqConfig(base_width=32, ch_mult=(1, 1), z_channels=32, codebook_size=VOCAB)
    stored = load_file(checkpoints / "image_tokenizer" / "model.safetensors")
    reference = VqTokenizer(config)
    reference.load_state_dict({**reference.state_dict(), **stored})
    with torch.no_grad():
        expected = reference.eval().decode(torch.from_numpy(tokens)).numpy()
    spec = bundle.manifest.image_decoder
    pixels = OrtImageDecoder(bundle.file(spec.files[0]), threads=1).decode(tokens)
    assert pixels.shape == (3, 3, *spec.image_size)
    np.testing.assert_allclose(pixels, expected, atol=TOLERANCE)

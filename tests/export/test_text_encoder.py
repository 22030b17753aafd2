"""Captions in words: a tiny T5 of transformers against its graph, and the way from text to picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from coolsd_trt.engines.text import OrtTextEncoder
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.export.graph.text_encoder import write_text_encoder
from coolsd_trt.export.locate import open_checkpoint
from coolsd_trt.export.t5 import T5Encoder
from coolsd_trt.runtime import InputError, Pipeline, SpeculativeConfig

from .models import ArrayCheckpoint, shape, target_config, target_tensors, tokenizer_tensors

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

WORDS = ["a", "cat", "red", "flag", "on", "the", "moon", "with", "two", "hats", "and", "one", "very", "small", "dog"]
CAPTIONS = ["A red cat", "two very small hats on the moon and one dog with a flag", "cat"]
LENGTH, WIDTH = 9, 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random flan-t5 with a word tokenizer, as transformers saves it, decoder included."""
    out = tmp_path_factory.mktemp("t5")
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=40,
        d_model=WIDTH,
        d_kv=8,
        d_ff=32,
        num_layers=3,
        num_heads=4,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=6,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    for parameter in model.parameters():
        parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    model.save_pretrained(out)
    vocab = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {word: i + 3 for i, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.save(str(out / "tokenizer.json"))
    return out


def test_features_equal_transformers(folder: Path, tmp_path: Path) -> None:
    weights = T5Encoder(open_checkpoint(folder), WIDTH)
    write_text_encoder(tmp_path / "text_encoder.onnx", weights, LENGTH)
    encoder = OrtTextEncoder(tmp_path / "text_encoder.onnx", tmp_path / "tokenizer.json", LENGTH, threads=1)
    features, mask = encoder.encode(CAPTIONS)
    assert mask.sum(axis=1).tolist() == [4, LENGTH, 2]

    tokens = np.zeros((3, LENGTH), dtype=np.int64)
    for row, caption in zip(tokens, CAPTIONS, strict=True):
        ids = [WORDS.index(word) + 3 for word in caption.lower().split()][: LENGTH - 1]
        row[: len(ids) + 1] = [*ids, 1]
    model = transformers.T5EncoderModel.from_pretrained(folder).eval()
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens), attention_mask=torch.from_numpy(mask.astype(np.int64)))
    np.testing.assert_allclose(features[mask], expected.last_hidden_state.numpy()[mask], atol=1e-4, rtol=0)


def test_position_buckets_of_long_captions(folder: Path) -> None:
    weights = T5Encoder(open_checkpoint(folder), WIDTH)
    model = transformers.T5EncoderModel.from_pretrained(folder)
    expected = model.encoder.block[0].layer[0].SelfAttention.compute_bias(120, 120)[0]
    np.testing.assert_allclose(weights.position_bias(120), expected.detach().numpy(), atol=1e-6)


def test_from_words_to_pictures(folder: Path, tmp_path: Path) -> None:
    s = shape(zero_rows=LENGTH)
    target = ArrayCheckpoint(target_tensors(s, 0, WIDTH), target_config(s), "target")
    tokenizer = ArrayCheckpoint(tokenizer_tensors(s.vocab), name="tokenizer")
    result = build_bundle(BuildRequest(target, tokenizer, text_encoder=folder), tmp_path / "bundle")
    assert not result.notes
    with Pipeline.load(tmp_path / "bundle", threads=1) as pipeline:
        settings = dict(speculative=SpeculativeConfig(rule="ar"), seed=3)
        by_words = pipeline.generate(captions=CAPTIONS, **settings)
        assert [entry["caption"] for entry in by_words.parameters] == CAPTIONS
        features, mask = pipeline._engines.text_encoder.encode(CAPTIONS)
        by_features = pipeline.generate(caption_features=features, caption_mask=mask, **settings)
        np.testing.assert_array_equal(by_words.tokens, by_features.tokens)
        for wrong in ({}, {"class_ids": [0]}, {"captions": CAPTIONS, "caption_features": features}):
            with pytest.raises(InputError, match="takes captions"):
                pipeline.generate(**wrong, **settings)
    (tmp_path / "bundle" / "tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"tokenizer.json: 2 bytes, the manifest says"):
        Pipeline.load(tmp_path / "bundle")


def test_a_text_encoder_of_another_width(folder: Path, tmp_path: Path) -> None:
    s = shape(zero_rows=LENGTH)
    target = ArrayCheckpoint(target_tensors(s, 0, WIDTH + 1), target_config(s), "target")
    request = BuildRequest(target, ArrayCheckpoint(tokenizer_tensors(s.vocab)), text_encoder=folder)
    with pytest.raises(InputError, match=f"width is {WIDTH}, the target wants {WIDTH + 1}"):
        build_bundle(request, tmp_path / "bundle")


def test_the_tokenizer_must_be_there(folder: Path, tmp_path: Path) -> None:
    for file in ("model.safetensors", "config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    assert json.loads((tmp_path / "config.json").read_text())["d_model"] == WIDTH
    with pytest.raises(InputError, match=r"tokenizer.json: no such file"):
        write_text_encoder(tmp_path / "t.onnx", T5Encoder(open_checkpoint(tmp_path), WIDTH), LENGTH)

"""The torch models against the golden checkpoints: names, shapes, numbers."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from coolsd_trt.tools.training.eagle import Draft, DraftConfig
from coolsd_trt.tools.training.llamagen import Target, TargetConfig, guided, rope_table, sample
from coolsd_trt.tools.training.vq import VqConfig, VqTokenizer, to_uint8
from safetensors.torch import load_file


def _shapes(tensors):
    return {name: tuple(value.shape) for name, value in tensors.items()}


def test_condition_rows_of_the_rope_table_are_zero_vectors():
    table = rope_table(4, 8, zero_rows=1, spare_rows=2)
    assert table.shape == (19, 4, 2)
    assert (table[0] == 0).all() and (table[-2:] == 0).all()
    assert torch.equal(table[1], torch.tensor([[1.0, 0.0]] * 4))
    row_turn = torch.tensor([1.0, 0.01])
    torch.testing.assert_close(table[1 + 2 * 4 + 3, :2, 0], torch.cos(2 * row_turn))
    torch.testing.assert_close(table[1 + 2 * 4 + 3, 2:, 1], torch.sin(3 * row_turn))


@pytest.mark.parametrize(
    ("grid", "head_dim", "zero_rows"), [(8, 32, 1), (16, 32, 1), (24, 32, 1), (8, 64, 120), (8, 100, 1)]
)
def test_rope_tables_equal_the_published_ones(golden, grid, head_dim, zero_rows):
    expected = np.load(golden / "formats" / "rope2d_tables.npz")[f"grid{grid}_hd{head_dim}_cls{zero_rows}"]
    np.testing.assert_allclose(rope_table(grid, head_dim, zero_rows).numpy(), expected, atol=1e-6)


def test_target_has_the_golden_names_shapes_and_logits(golden):
    folder = golden / "llamagen_c2i"
    model = Target.load(folder)
    assert _shapes(model.state_dict()) == _shapes(load_file(folder / "model.safetensors"))
    z = np.load(folder / "goldens.npz")
    classes = torch.from_numpy(np.concatenate([z["class_ids"], np.full(2, z["null_class"])]))
    tokens = torch.from_numpy(z["tokens"]).repeat(2, 1)[:, :255]
    with torch.no_grad():
        logits, hidden = model(classes, tokens)
    np.testing.assert_allclose(logits[:, :32].numpy(), z["logits_full"], atol=1e-4)
    np.testing.assert_allclose(hidden[:, :17].numpy(), z["final_norm_output"], atol=1e-4)
    np.testing.assert_allclose(logits[:, z["rows"]].numpy(), z["logits_cached"], atol=1e-4)
    np.testing.assert_allclose(guided(logits, 4.0)[:, :32].numpy(), z["logits_cfg"], atol=5e-4)


def test_target_continues_from_its_cache(golden):
    model = Target.load(golden / "llamagen_c2i")
    classes, tokens = torch.tensor([1, 7]), torch.randint(0, 512, (2, 20), generator=torch.Generator().manual_seed(0))
    cache: list = []
    with torch.no_grad():
        whole, _ = model(classes, tokens)
        parts = [model(classes, tokens[:, :3], cache)[0], model(None, tokens[:, 3:4], cache)[0]]
        parts.append(model(None, tokens[:, 4:], cache)[0])
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-4, rtol=0)


def test_sampling_is_seeded():
    torch.manual_seed(0)
    config = TargetConfig(dim=16, n_layer=1, n_head=2, vocab_size=8, num_classes=3, block_size=16, head_dim=8)
    model = Target(config)
    torch.nn.init.normal_(model.output.weight)
    draws = [sample(model, torch.tensor([0, 2]), 2.0, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert draws[0].shape == (2, 16)
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def _golden_tokenizer(golden):
    folder = golden / "llamagen_vq16"
    fields = json.loads((folder / "config.json").read_text())
    names = ("base_width", "z_channels", "codebook_size", "embed_dim")
    config = VqConfig(ch_mult=tuple(fields["ch_mult"]), **{k: fields[k] for k in names})
    tensors = torch.load(folder / "vq_ds16_tiny.pt", weights_only=True)["model"]
    return VqTokenizer.from_tensors(config, tensors), tensors, np.load(folder / "goldens.npz")


def test_tokenizer_has_the_golden_names_and_shapes(golden):
    model, tensors, _ = _golden_tokenizer(golden)
    tensors.pop("quantize.codebook_used")
    assert _shapes(model.state_dict()) == _shapes(tensors)


def test_tokenizer_decodes_the_golden_codes(golden):
    model, _, z = _golden_tokenizer(golden)
    with torch.no_grad():
        image = model.decode(torch.from_numpy(z["codes"]).long())
    np.testing.assert_allclose(image.numpy(), z["image"], atol=1e-4)
    pixels = to_uint8(image).permute(0, 2, 3, 1).numpy().astype(int)
    assert pixels.shape == z["image_uint8"].shape


def test_tokenizer_encodes_the_golden_image(golden):
    model, _, z = _golden_tokenizer(golden)
    image = torch.from_numpy(z["enc_image"])
    with torch.no_grad():
        np.testing.assert_allclose(model.encoder(image).numpy(), z["enc_out"], atol=1e-4)
        assert np.array_equal(model.encode(image).numpy(), z["enc_codes"].reshape(2, 36))


def _golden_draft(golden, **shape):
    folder = golden / "lantern_llamagen" / "drafter"
    config = replace(DraftConfig.load(folder), **shape)
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    return Draft.from_tensors(config, tensors), tensors, np.load(folder.parent / "drafter_goldens.npz")


def test_draft_has_the_golden_names_and_shapes(golden):
    model, tensors, _ = _golden_draft(golden)
    assert _shapes(model.state_dict()) == _shapes(tensors)


def test_draft_reproduces_the_golden_prefill(golden):
    model, _, z = _golden_draft(golden, zero_rows=119)
    with torch.no_grad():
        predicted = model(torch.from_numpy(z["fw0_hidden_in"]), torch.from_numpy(z["fw0_ids"]).long())
    np.testing.assert_allclose(predicted.numpy(), z["fw0_hidden_out"], atol=1e-4)


def test_draft_reproduces_the_class_conditional_probe(golden):
    model, _, z = _golden_draft(golden, grid_size=24, zero_rows=0)
    with torch.no_grad():
        predicted = model(torch.from_numpy(z["rope_probe_hidden"]), torch.from_numpy(z["rope_probe_tokens"]).long())
    np.testing.assert_allclose(predicted.numpy(), z["rope_probe_out_c2i"], atol=1e-4)

"""Codes, draft task, export and command line on tiny models."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from coolsd_trt.runtime.errors import InputError
from coolsd_trt.tools.cli.errors import run_app
from coolsd_trt.tools.training import codes as codes_module
from coolsd_trt.tools.training import emoji, export
from coolsd_trt.tools.training.__main__ import app
from coolsd_trt.tools.training.codes import Codes
from coolsd_trt.tools.training.decoder import DecoderTask
from coolsd_trt.tools.training.draft import DraftTask, overlaps
from coolsd_trt.tools.training.eagle import Draft
from coolsd_trt.tools.training.llamagen import Target, TargetConfig
from coolsd_trt.tools.training.loop import LoopSettings, train
from coolsd_trt.tools.training.pictures import sampling_weights, shifted
from coolsd_trt.tools.training.target import TargetTask
from coolsd_trt.tools.training.tokenizer import TokenizerTask
from coolsd_trt.tools.training.vq import VqConfig, VqTokenizer, from_uint8

SHAPE = TargetConfig(
    dim=16, n_layer=1, n_head=2, vocab_size=8, num_classes=2, block_size=16, hidden_dim_ffn=16, head_dim=8
)
LOOP = LoopSettings(steps=2, learning_rate=1e-3, validate_every=1, checkpoint_every=1, ema_decay=0.9)


@pytest.fixture(scope="module")
def data(package, tmp_path_factory):
    return emoji.prepare(package[0], tmp_path_factory.mktemp("data"), held_out_fraction=0.2)


def _some(data: emoji.EmojiData, held_out: int, trained: int) -> emoji.EmojiData:
    rows = np.concatenate([np.flatnonzero(data.held_out)[:held_out], np.flatnonzero(~data.held_out)[:trained]])
    return replace(data, **{k: getattr(data, k)[rows] for k in ("images", "labels", "bases", "held_out", "names")})


def _codes() -> Codes:
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 8, (12, 2, 16)).astype(np.uint16)
    return Codes(drawn, rng.integers(0, 2, 12), np.arange(12) < 3, np.full(12, 1 / 12))


def _target() -> Target:
    torch.manual_seed(0)
    model = Target(SHAPE)
    torch.nn.init.normal_(model.output.weight)
    return model.eval()


def test_shifting_fills_with_white():
    picture = np.arange(3 * 4 * 3, dtype=np.uint8).reshape(3, 4, 3)
    moved = shifted(picture, 1, -2)
    np.testing.assert_array_equal(moved[1:, :2], picture[:2, 2:])
    assert (moved[0] == 255).all() and (moved[:, 2:] == 255).all()
    np.testing.assert_array_equal(shifted(picture, 0, 0), picture)


def test_variants_share_their_weight():
    weights = sampling_weights(np.array([0, 1, 1, 1, 1]))
    assert weights.sum() == pytest.approx(1) and weights[1:].sum() == pytest.approx(2 * weights[0])


def test_only_classes_without_letters_and_flags_are_mirrored(data):
    assert codes_module.flippable(data).tolist() == [False, True]


def test_held_out_pictures_are_never_drawn(data, tmp_path):
    model = VqTokenizer(VqConfig(base_width=32, ch_mult=(1, 1, 1), z_channels=32)).eval()
    small = _some(data, 2, 6)
    written = codes_module.encode(small, model, tmp_path, variants=2, seed=0)
    codes = Codes.load(tmp_path)
    np.testing.assert_array_equal(codes.codes, written.codes)
    marked = replace(codes, labels=codes.held_out.astype(np.int64))
    assert int(marked.draw(np.random.default_rng(0), 200)[1].sum()) == 0
    tokens, _ = codes.held_out_pictures()
    np.testing.assert_array_equal(tokens.numpy(), codes.codes[codes.held_out, 0])


def test_white_cells_share_one_code_and_repeats_are_preferred(data):
    torch.manual_seed(0)
    model = VqTokenizer(VqConfig(base_width=32, ch_mult=(1, 1, 1), z_channels=32)).eval()
    encoder = codes_module.ThriftyEncoder.fit(model, data.images[:8])
    image = from_uint8(torch.from_numpy(data.images[:4]))
    with torch.no_grad():
        codes, nearest = encoder(image), model.encode(image)
        encoder.frequency_weight, encoder.repeat_bonus, encoder.white_code = 0.0, 0.0, -1
        unbiased = encoder(image)
    assert (codes.view(4, 16, 16)[:, 0] == codes[0, 0]).all()
    inked = (torch.from_numpy(data.images[:4]).view(4, 16, 4, 16, 4, 3).amin((2, 4, 5)) < 255).flatten(1)
    assert torch.equal(unbiased[inked], nearest[inked])

    def repeats(grid):
        return float((grid.view(4, 16, 16)[:, :, 1:] == grid.view(4, 16, 16)[:, :, :-1]).float().mean())

    assert repeats(codes) >= repeats(nearest)


def test_the_decoder_is_fitted_and_the_codes_stay(data, tmp_path):
    torch.manual_seed(0)
    model = VqTokenizer(VqConfig(base_width=32, ch_mult=(1, 1, 1), z_channels=32))
    image = from_uint8(torch.from_numpy(data.images[:2]))
    with torch.no_grad():
        codes, picture = model.encode(image), model.decode(model.encode(image))
    train(DecoderTask(_some(data, 2, 6), model, batch=2), LOOP, tmp_path)
    fitted = export.load_tokenizer(tmp_path)
    with torch.no_grad():
        assert torch.equal(fitted.encode(image), codes)
        assert not torch.equal(fitted.decode(codes), picture)


def test_codes_must_exist(tmp_path):
    with pytest.raises(InputError, match="training encode"):
        Codes.load(tmp_path)


def test_tokenizer_warms_up_draws_codes_and_resumes(data, tmp_path):
    config = VqConfig(base_width=32, ch_mult=(1, 1, 1), z_channels=32, codebook_size=16)

    def task() -> TokenizerTask:
        torch.manual_seed(0)
        small = replace(data, images=data.images[:, ::4, ::4])
        return TokenizerTask(small, config, batch=2, warm_up=1)

    whole = task()
    train(whole, replace(LOOP, steps=3), tmp_path / "whole")
    train(task(), replace(LOOP, steps=3), tmp_path / "again")
    logs = [(tmp_path / run / "log.jsonl").read_text().splitlines() for run in ("whole", "again")]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]
    norms = whole.module.quantize.embedding.weight.norm(dim=1)
    torch.testing.assert_close(norms, torch.ones_like(norms), atol=0.05, rtol=0)


def test_a_perfect_draft_overlaps_fully():
    target = _target()

    class Oracle(torch.nn.Module):
        def forward(self, features, token_ids):
            return self.answer[:, 1:]

    tokens, labels = Codes.held_out_pictures(_codes())
    oracle = Oracle()
    both = torch.cat([labels, torch.full_like(labels, target.null_class)])
    with torch.no_grad():
        oracle.answer = target(both, tokens[:, :-1].repeat(2, 1))[1]
    plain, with_cfg = overlaps(target, oracle, tokens, labels, cfg_scale=3.0)
    assert plain == pytest.approx(1, abs=1e-5) and with_cfg == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("second_pass", [0.0, 0.5])
def test_the_draft_learns_and_the_target_does_not(second_pass, tmp_path):
    target = _target()
    before = {k: v.clone() for k, v in target.state_dict().items()}
    task = DraftTask(_codes(), target, batch=4, second_pass=second_pass)
    torch.testing.assert_close(task.module.embed_tokens.weight, target.output.weight)
    state = train(task, replace(LOOP, steps=40, learning_rate=1e-2, validate_every=20), tmp_path)
    assert state.records[-1]["loss"] < state.records[0]["loss"]
    assert all(torch.equal(v, before[k]) for k, v in target.state_dict().items())


def test_exported_models_load_and_agree(tmp_path):
    target = _target()
    task = DraftTask(_codes(), target, batch=4)
    export.write_target(target, ["a", "b"], tmp_path / "target")
    export.write_draft(task.module, target.config, tmp_path / "draft")
    again, draft = Target.load(tmp_path / "target"), Draft.load(tmp_path / "draft")
    tokens, labels = Codes.held_out_pictures(_codes())
    with torch.no_grad():
        expected, hidden = target(labels, tokens)
        assert torch.equal(again(labels, tokens)[0], expected)
        assert torch.equal(draft(hidden[:, :-1], tokens), task.module(hidden[:, :-1], tokens))
    assert json.loads((tmp_path / "target" / "class_names.json").read_text()) == ["a", "b"]
    assert json.loads((tmp_path / "draft" / "config.json").read_text())["input_type"] == "c2i"


def test_a_run_of_another_kind_is_refused(tmp_path):
    train(TargetTask(_codes(), SHAPE, batch=2), LOOP, tmp_path)
    assert isinstance(export.load_target(tmp_path), Target)
    with pytest.raises(InputError, match="holds a target run, expected a tokenizer run"):
        export.load_tokenizer(tmp_path)


def test_the_command_line_says_what_is_missing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["training", "tokenizer", "--data", str(tmp_path), "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as stop:
        run_app(app)
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert "emoji.npz" in message.replace("\n", "") and "Traceback" not in message
    assert not (tmp_path / "run").exists()

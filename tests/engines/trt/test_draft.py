"""A draft's whole chain on a fake GPU: the tokens of single steps, in one launch, without a word from the host."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
from chains import SETTINGS, chain_input, mid_picture, require_same_drafts
from coolsd_trt.engines.bundle import Bundle
from coolsd_trt.engines.manifest import LoweringName
from coolsd_trt.engines.trt.draft import TrtDraft
from coolsd_trt.engines.trt.plan import Plan
from coolsd_trt.engines.trt.profiles import SAMPLER, profiles_of
from coolsd_trt.export.build import BuildRequest, build_bundle
from coolsd_trt.runtime import BackendError, SamplingConfig
from coolsd_trt.runtime.drafting import FusedDrafter, StaticDrafter, static_drafter
from coolsd_trt.runtime.spans import recording
from coolsd_trt.runtime.tree import Tree
from fake_gpu import FakeCuda, FakeTrt

LONGEST = 9


class Rig:
    """The draft of a bundle on a fake GPU."""

    def __init__(self, bundle: Bundle, folder: Path, rtx: bool = True) -> None:
        self.info, self.cuda = bundle.info, FakeCuda()
        self.trt = FakeTrt(self.cuda, rtx=rtx)
        manifest = bundle.manifest
        plans = []
        for part in ("draft", SAMPLER):
            file = folder / f"{part}.plan"
            spec = manifest.parts()[part]
            file.write_text(str(bundle.file(spec.files[0])))
            plans.append(Plan(self.trt, self.cuda, file, spec, profiles_of(manifest, part, max_batch=3)))
        self.draft = TrtDraft(self.cuda, plans[0], manifest.draft, 3, plans[1], manifest.draft_sampler, LONGEST)

    def calls(self) -> list[str]:
        """What was asked of the GPU since the last time."""
        found = [name for name in self.cuda.names() if name != "malloc"]
        del self.cuda.log[:]
        return found


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[LoweringName, Bundle]:
    folder = tmp_path_factory.mktemp("bundles")
    tiny.make_checkpoints(folder, vocab=64)
    parts = [folder / name for name in ("target", "image_tokenizer", "draft")]
    made: dict[LoweringName, Bundle] = {}
    for lowering in ("tensor_scatter", "portable"):
        request = BuildRequest(*parts, max_draft_length=LONGEST, neighbors=0, lowering=lowering)
        build_bundle(request, folder / lowering)
        made[lowering] = Bundle.open(folder / lowering)
    return made


@pytest.fixture
def rig(bundles: dict[LoweringName, Bundle], tmp_path: Path) -> Rig:
    made = Rig(bundles["tensor_scatter"], tmp_path)
    made.draft.allocate(6, 20)
    return made


@pytest.mark.parametrize("length", [1, 4, 9])
@pytest.mark.parametrize("lowering", ["tensor_scatter", "portable"])
def test_the_same_tokens_from_the_same_laws(
    bundles: dict[LoweringName, Bundle], tmp_path: Path, lowering: LoweringName, length: int
) -> None:
    rig = Rig(bundles[lowering], tmp_path, rtx=lowering == "tensor_scatter")
    for settings in SETTINGS:
        require_same_drafts(rig.draft, rig.info, length, SamplingConfig(**settings))
    assert "launch" in rig.calls()


def test_a_chain_is_one_launch_and_one_wait(rig: Rig) -> None:
    chain = chain_input(rig.info, np.full((3, 2), 0.5))
    first = rig.draft.chain(chain).tokens.copy()
    foreseen, per_token = ["upload"] * 3, ["upload"] * 3
    sampled = [*per_token, "run", "download", "download"]
    constant = ["upload"] * 6
    step = [*foreseen, "run", *sampled]
    assert rig.calls() == [*constant, *["upload"] * 5, "run", *sampled, *step, *step, "synchronize"]
    for expected in (["capture", "launch"], ["launch"], ["launch"]):
        np.testing.assert_array_equal(rig.draft.chain(chain).tokens, first)
        assert rig.calls() == [*expected, "synchronize"]
    with recording() as recorder:
        rig.draft.chain(chain)
    assert [span.name for span in recorder.spans] == ["copies", "gpu", "engine"]
    assert rig.calls() == ["record", "launch", "record", "synchronize"]


def test_only_settings_that_changed_travel(rig: Rig) -> None:
    uniforms = np.full((3, 2), 0.5)
    for _ in range(2):  # from here on it is launched
        rig.draft.chain(chain_input(rig.info, uniforms, top_k=5))
    rig.calls()
    for top_k, uploads in ((5, 0), (6, 6), (6, 0), (5, 6)):
        found = rig.draft.chain(chain_input(rig.info, uniforms, top_k=top_k))
        assert ((found.q > 0).sum(axis=2) == top_k).all()
        assert rig.calls() == [*["upload"] * uploads, "launch", "synchronize"]


def test_the_sampler_writes_where_the_next_step_reads(rig: Rig) -> None:
    rig.draft.chain(chain_input(rig.info, np.full((3, 2), 0.5)))
    steps = [context for context in rig.trt.contexts if "features" in context.shapes]
    samplers = [context for context in rig.trt.contexts if "last" in context.shapes]
    assert (len(steps), len(samplers)) == (1, 1), "the catch-up was one token, as the steps are"
    step, sampler = steps[0].addresses, samplers[0].addresses
    for made, read in (("next_input_ids", "input_ids"), ("next_features", "features")):
        assert sampler[made] == step[read]
    for name in ("logits", "hidden"):
        assert sampler[name] == step[name]


def test_steps_between_chains_may_move_memory(rig: Rig) -> None:
    chain = chain_input(rig.info, np.full((4, 2), 0.3))
    first = [rig.draft.chain(chain).tokens.copy() for _ in range(3)][-1]
    require_same_drafts(rig.draft, rig.info, 9, SamplingConfig())  # more rows, and catch-ups of more tokens
    rig.draft.allocate(6, 20)
    for _ in range(3):
        np.testing.assert_array_equal(rig.draft.chain(chain).tokens, first)


@pytest.mark.parametrize("top_k", [0, 5])
def test_a_token_is_the_draw_from_the_law_that_is_returned(rig: Rig, top_k: int) -> None:
    uniforms = np.random.default_rng(0).random((6, 3))
    uniforms[:2, 0], uniforms[:2, 1] = 0, np.nextafter(1, 0)
    drawn = rig.draft.chain(chain_input(rig.info, uniforms, top_k=top_k))
    assert drawn.q.dtype == np.float32
    for token, q, u in zip(drawn.tokens.ravel(), drawn.q.reshape(18, -1), uniforms.ravel(), strict=True):
        edges = np.cumsum(q, dtype=np.float64) / q.sum(dtype=np.float64)
        assert q[token] > 0
        assert edges[token] - q[token] - 1e-6 <= u <= edges[token] + 1e-6
        assert (q > 0).sum() == (top_k or len(q))


def test_laws_that_reach_the_rules_sum_to_one(rig: Rig) -> None:
    drafter = FusedDrafter(rig.draft, 5, SamplingConfig(top_k=20))
    for proposal in drafter.propose(mid_picture(rig.info, drafter.sampling), [5, 5, 5]):
        assert len(proposal.q) == 5
        assert all(abs(law.mass.sum() - 1) < 1e-15 for law in proposal.q.values())


@pytest.mark.parametrize(
    ("settings", "fused"), [({}, True), ({"top_k": 10}, True), ({"top_p": 0.9}, False), ({"top_k": 12}, False)]
)
def test_who_drafts(rig: Rig, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], fused: bool) -> None:
    monkeypatch.setattr("coolsd_trt.engines.trt.profiles.MOST_TOP_K", 10)
    kind = FusedDrafter if fused else StaticDrafter
    assert isinstance(static_drafter(rig.draft, Tree.chain(4), SamplingConfig(**settings)), kind)
    assert isinstance(static_drafter(rig.draft, Tree.chain(LONGEST + 1), SamplingConfig()), StaticDrafter)


def test_without_graphs_chains_run_call_by_call(rig: Rig) -> None:
    rig.trt.capturable = False
    chain = chain_input(rig.info, np.full((3, 2), 0.5))
    drawn = [rig.draft.chain(chain).tokens.copy() for _ in range(3)]
    np.testing.assert_array_equal(drawn[0], drawn[2])
    assert rig.cuda.names().count("run") == 3 * 6
    assert not rig.cuda.graphs


def test_everything_is_freed(rig: Rig) -> None:
    for _ in range(2):
        rig.draft.chain(chain_input(rig.info, np.full((3, 2), 0.5)))
    rig.draft.close()
    assert (rig.cuda.device, rig.cuda.pinned, rig.cuda.graphs) == ({}, {}, [])
    rig.draft.close()


def test_after_no_room_in_the_middle_chains_are_as_before(bundles: dict[LoweringName, Bundle], tmp_path: Path) -> None:
    """Every allocation of a larger chain fails once; the smaller one that follows must not read what was freed."""
    small, large = (chain_input(bundles["tensor_scatter"].info, np.full((3, images), 0.4)) for images in (2, 3))
    for failing in range(40):
        rig = Rig(bundles["tensor_scatter"], tmp_path)
        rig.draft.allocate(6, 20)
        expected = [rig.draft.chain(small).tokens.copy() for _ in range(3)][-1]
        malloc, left = rig.cuda.malloc, failing

        def limited(size: int, what: str, malloc: Any = malloc) -> int:
            nonlocal left
            left -= 1
            if left < 0:
                raise BackendError("out of GPU memory")
            return malloc(size, what)

        rig.cuda.malloc = limited
        with suppress(BackendError):
            rig.draft.chain(large)
        rig.cuda.malloc = malloc
        for _ in range(3):
            np.testing.assert_array_equal(rig.draft.chain(small).tokens, expected)
        rig.draft.close()
        assert (rig.cuda.device, rig.cuda.pinned) == ({}, {})

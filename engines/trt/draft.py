"""A draft on TensorRT that runs whole chains: its steps, and a plan that samples between them, in one CUDA graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...runtime.config import SamplingConfig
from ...runtime.protocols import ChainInput, ChainOutput
from ...runtime.spans import span
from ...runtime.warping import LEAST_TEMPERATURE
from ..cuda import Cuda
from ..manifest import GraphSpec, TransformerSpec
from .plan import Plan
from .profiles import Shape, resolve, top_k_limit
from .staging import Staging
from .transformer import TrtTransformer

# Of a step's inputs, those that the host knows ahead; the rest the sampler makes (`export.graph.draft_sampler`).
FORESEEN = ("position_ids", "mask", "write_indices")
# Of the sampler's inputs, those that every token has its own of; of the others all but logits and hidden stay the same
# as long as a batch and its settings do.
PER_TOKEN = ("last", "uniforms", "uncond_rows")
CONSTANT = ("cond_rows", "image_of_row", "cfg_scale", "temperature", "top_k", "greedy")
SAMPLED = ("token", "q")


class TrtDraft(TrtTransformer):
    """`TrtTransformer` with chains on the same caches, of any length up to `longest`.

    Nothing waits for the host between two tokens: the sampler writes ids and features to where the next step reads
    them, and neither logits nor hidden states leave the GPU. Laws are float32, the host rounds its uniforms to that.
    """

    def __init__(
        self,
        cuda: Cuda,
        plan: Plan,
        spec: TransformerSpec,
        max_batch: int,
        sampler: Plan,
        sampler_spec: GraphSpec,
        longest: int,
    ) -> None:
        super().__init__(cuda, plan, spec, max_batch)
        self._sampler = sampler
        self._longest = longest
        tensors = {tensor.name: tensor for tensor in (*sampler_spec.inputs, *sampler_spec.outputs)}
        self._sampler_inputs = {tensor.name: tensor for tensor in sampler_spec.inputs}
        self._sampler_tensors = tensors
        self._constant = {name: Staging(cuda, name, tensors[name].dtype) for name in CONSTANT}
        self._uploaded: tuple[Any, ...] = ()
        self._series = {name: Staging(cuda, name, tensors[name].dtype) for name in (*PER_TOKEN, *SAMPLED)}
        self._series |= {
            name: Staging(cuda, name, self._inputs[name].dtype, place=self._staged[name]) for name in FORESEEN
        }
        self._sampler_addresses: dict[str, int] = {}

    @property
    def longest_chain(self) -> int:
        return self._longest

    def samples(self, sampling: SamplingConfig) -> bool:
        vocab = self._spec.vocab_size
        return sampling.top_p == 1 and (sampling.top_k <= top_k_limit(vocab) or sampling.top_k >= vocab)

    def chain(self, chain: ChainInput) -> ChainOutput:
        length, images = chain.uniforms.shape
        rows, tokens = chain.input_ids.shape
        sizes = {"batch": rows, "tokens": tokens, "images": images, "cache_length": self._spec.positions}
        self._reserve_chain(sizes, length)
        with span("copies"):
            self._fill_chain(chain, sizes)
        with span("engine"):
            self._clock.start()
            self._recordings.run(
                ("chain", rows, tokens, images, length, *self._caches.values()),
                lambda: self._enqueue_chain(sizes, length),
                lambda: self._capturable(sizes, length),
            )
            self._clock.stop()
            if length % 2:
                self._caches, self._next = self._next, self._caches
            self._cuda.synchronize()
            self._clock.read()
        drafted, q = (self._series[name].views(self._sized(name, sizes), length) for name in SAMPLED)
        return ChainOutput(drafted, q)

    def close(self) -> None:
        super().close()
        for staging in (*self._constant.values(), *self._series.values()):
            staging.close()
        self._sampler.close()

    def _reserve_chain(self, sizes: Mapping[str, int], length: int) -> None:
        """Room for a chain; graphs recorded with older addresses go."""
        self._reserve(sizes["batch"], sizes["tokens"])
        uploaded, self._uploaded = self._uploaded, ()
        try:
            constant = [staging.reserve(self._sized(name, sizes)) for name, staging in self._constant.items()]
            series = [series.reserve(self._sized(name, sizes), length) for name, series in self._series.items()]
        except BaseException:  # what is there has moved by then
            self._recordings.clear()
            raise
        if not any(constant):
            self._uploaded = uploaded
        if any(constant + series):
            self._recordings.clear()
        places: dict[str, Staging] = {
            "logits": self._staged["logits"],
            "hidden": self._staged["hidden"],
            "next_input_ids": self._staged["input_ids"],
            "next_features": self._staged["features"],
            **self._constant,
            **{name: self._series[name] for name in (*PER_TOKEN, *SAMPLED)},
        }
        addresses = {name: place.address for name, place in places.items()}
        if addresses != self._sampler_addresses:
            self._sampler.bind(addresses)
            self._sampler_addresses = addresses

    def _fill_chain(self, chain: ChainInput, sizes: Mapping[str, int]) -> None:
        """The host's side of all inputs."""
        length, images = chain.uniforms.shape
        rows, tokens = chain.input_ids.shape
        slots = np.arange(self._spec.positions)
        positions = chain.lengths[:, None] + np.arange(tokens)
        mask = slots <= positions[:, None, :, None]
        self._fill(chain.input_ids, positions, mask, chain.lengths, chain.features)

        view = {name: series.views(self._sized(name, sizes), length) for name, series in self._series.items()}
        # The chain's step k continues at `ends + k - 1`; the catch-up's places in these stay unused.
        places = chain.lengths + chain.counts + np.arange(-1, length - 1)[:, None]
        view["write_indices"][...] = places
        view["position_ids"][...] = places[..., None]
        view["mask"][...] = slots <= places[..., None, None, None]
        view["last"][...] = 0
        view["last"][0] = chain.counts - 1
        view["uniforms"][...] = chain.uniforms
        branches = rows // images
        cond_rows = np.arange(images) * branches
        # A token that is not guided has the conditional row as both of its rows, which is exact.
        view["uncond_rows"][...] = cond_rows + chain.guided * (branches - 1)

        settings = (rows, images, chain.sampling)
        if settings != self._uploaded:
            self._uploaded = ()
            self._upload_constants(cond_rows, np.arange(rows) // branches, chain.sampling, sizes)
            self._uploaded = settings

    def _upload_constants(
        self,
        cond_rows: NDArray[np.int64],
        image_of_row: NDArray[np.int64],
        sampling: SamplingConfig,
        sizes: Mapping[str, int],
    ) -> None:
        values = {
            "cond_rows": cond_rows,
            "image_of_row": image_of_row,
            "cfg_scale": sampling.cfg_scale,
            "temperature": 1.0 if sampling.greedy else max(sampling.temperature, LEAST_TEMPERATURE),
            "top_k": sampling.top_k if sampling.top_k < self._spec.vocab_size else 0,
            "greedy": sampling.greedy,
        }
        for name, value in values.items():
            shape = self._sized(name, sizes)
            self._constant[name].view(shape)[...] = value
            self._constant[name].upload(shape)

    def _enqueue_chain(self, sizes: Mapping[str, int], length: int) -> None:
        """Catch up and sample, then step and sample: all queued on the stream."""
        rows = sizes["batch"]
        for k in range(length):
            tokens = sizes["tokens"] if k == 0 else 1
            if k == 0:
                self._upload(rows, tokens)
            else:
                for name in FORESEEN:
                    self._series[name].upload(self._sized(name, sizes), k)
            self._plan.enqueue(*self._run(rows, tokens, k))
            for name in PER_TOKEN:
                self._series[name].upload(self._sized(name, sizes), k)
            self._sampler.enqueue(*self._sample(sizes, tokens))
            for name in SAMPLED:
                self._series[name].download(self._sized(name, sizes), k)

    def _capturable(self, sizes: Mapping[str, int], length: int) -> bool:
        return all(
            self._plan.capturable(*self._run(sizes["batch"], tokens, k))
            and self._sampler.capturable(*self._sample(sizes, tokens))
            for k, tokens in enumerate([sizes["tokens"], 1, 1][:length])
        )

    def _sample(self, sizes: Mapping[str, int], tokens: int) -> tuple[int, dict[str, Shape]]:
        """What the sampler's `Plan.enqueue` takes."""
        shapes = {name: resolve(tensor, {**sizes, "tokens": tokens}) for name, tensor in self._sampler_inputs.items()}
        return self._sampler.profile_for(tokens), shapes

    def _sized(self, name: str, sizes: Mapping[str, int]) -> Shape:
        """The shape of a tensor of one token of the chain."""
        tensor = self._inputs[name] if name in FORESEEN else self._sampler_tensors[name]
        return resolve(tensor, {**sizes, "tokens": 1})

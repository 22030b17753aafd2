"""onnxruntime's CUDA provider: the caches live on the GPU, ids and logits travel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .backends import CUDA_PROVIDER
from .bundle import Bundle
from .cuda import Cuda
from .device_cache import compact_caches
from .manifest import GraphSpec, TransformerSpec
from .ort import OrtImageDecoder, OrtTransformer, Placement
from .ort_draft import OrtDraft
from .ort_opener import OrtOpener

ON_CUDA = Placement(CUDA_PROVIDER)


class OrtCudaTransformer(OrtTransformer):
    """`OrtTransformer` with its caches in device memory, bound as past and as present."""

    cache_device = "cuda"

    def __init__(
        self, path: Path, spec: TransformerSpec, cuda: Cuda, placement: Placement = ON_CUDA, lazy: bool = False
    ) -> None:
        super().__init__(path, spec, placement=placement, lazy=lazy)
        self._cuda = cuda

    def copy_row(self, source: int, destination: int) -> None:
        size = int(np.prod(self._cache_shape[1:])) * np.dtype(self._spec.cache_dtype).itemsize
        for address in self._caches.values():
            self._cuda.move(address + destination * size, address + source * size, size)
        # onnxruntime runs on a stream of its own.
        self._cuda.synchronize()

    def compact(self, row: int, sources: NDArray[np.int64], destination: int) -> None:
        _, heads, length, width = self._cache_shape
        itemsize = np.dtype(self._spec.cache_dtype).itemsize
        compact_caches(self._cuda, self._caches.values(), (heads, length, width), itemsize, row, sources, destination)
        self._cuda.synchronize()

    def _new_cache(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        return self._cuda.malloc(int(np.prod(shape)) * dtype.itemsize, f"a KV cache buffer {shape}")

    def _address(self, cache: int) -> int:
        return cache

    def _free_caches(self) -> None:
        addresses = list(self._caches.values())
        super()._free_caches()
        for address in addresses:
            self._cuda.free(address)


class OrtCudaDraft(OrtDraft, OrtCudaTransformer):
    """Chains and steps on caches in device memory; what a chain samples with goes up, tokens and laws come down."""


class OrtCudaOpener(OrtOpener):
    """onnxruntime on the GPU; what turns captions and pictures into numbers stays on the CPU."""

    def __init__(self, bundle: Bundle, threads: int | None) -> None:
        super().__init__(bundle, threads)
        self._cuda = Cuda()

    def transformer(self, part: str, spec: TransformerSpec) -> OrtCudaTransformer:
        path = self._bundle.file(spec.files[0])
        if not spec.gpu_chains:
            return OrtCudaTransformer(path, spec, self._cuda)
        return OrtCudaDraft(path, spec, self._gpu_chains(spec), self._expected_chain, cuda=self._cuda)

    def image_decoder(self, spec: GraphSpec) -> OrtImageDecoder:
        return OrtImageDecoder(self._bundle.file(spec.files[0]), placement=ON_CUDA)

    def _gpu_chains(self, spec: TransformerSpec) -> list[Path]:
        return [self._bundle.file(chain) for chain in spec.gpu_chains]

    def close(self) -> None:
        self._cuda.close()

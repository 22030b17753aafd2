"""Which shapes a plan is optimised for: one optimisation profile per kind of step."""

from __future__ import annotations

from dataclasses import dataclass

from ..manifest import Manifest, Tensor, TransformerSpec

# Rows of one picture: conditional and unconditional.
BRANCHES = 2
TYPICAL_DRAFT = 5

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """Sizes of the symbolic dimensions: least, typical (what is optimised for), greatest."""

    name: str
    batch: tuple[int, int, int]
    tokens: tuple[int, int, int] = (1, 1, 1)
    cache_length: int = 0

    def shapes(self, tensor: Tensor) -> tuple[Shape, Shape, Shape]:
        """Least, typical and greatest shape of an input."""
        least, typical, greatest = (
            resolve(tensor, {"batch": batch, "tokens": tokens, "cache_length": self.cache_length})
            for batch, tokens in zip(self.batch, self.tokens, strict=True)
        )
        return least, typical, greatest


def resolve(tensor: Tensor, sizes: dict[str, int]) -> Shape:
    """The tensor's shape with numbers for names."""
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape)


def profiles_of(manifest: Manifest, part: str, max_batch: int) -> list[Profile]:
    """The profiles of one part's plan; a step takes the first whose `tokens` hold its length.

    A transformer decodes (one token), verifies (up to L + 1, also a draft's catch-up), and prefills a condition longer
    than that. The decode profile admits two tokens because fused attention kernels want a dynamic length. The cache
    length is fixed: the KV-cache-update layer takes no other. Other graphs run one picture at a time.
    """
    spec = manifest.parts()[part]
    if not isinstance(spec, TransformerSpec):
        return [Profile("picture", (1, 1, 1))]
    rows = (1, BRANCHES * max_batch, BRANCHES * max_batch)
    longest = max(manifest.max_draft_length + 1, 2)
    profiles = [Profile("decode", rows, (1, 1, 2), spec.positions)]
    if longest > 2:
        profiles.append(Profile("verify", rows, (3, min(TYPICAL_DRAFT + 1, longest), longest), spec.positions))
    if manifest.prefix_length > longest:
        prefix = manifest.prefix_length
        profiles.append(Profile("prefill", rows, (longest + 1, prefix, prefix), spec.positions))
    return profiles

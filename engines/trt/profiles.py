"""Which shapes a plan is optimised for: one optimisation profile per kind of step."""

from __future__ import annotations

from collections.abc import Mapping

from ..manifest import Manifest, Profile, Tensor, TransformerSpec

# Rows of one picture: conditional and unconditional.
BRANCHES = 2
TYPICAL_DRAFT = 5

SAMPLER = "draft sampler"
# TensorRT's TopK takes no more.
MOST_TOP_K = 3840

Shape = tuple[int, ...]


def shapes(profile: Profile, tensor: Tensor) -> tuple[Shape, Shape, Shape]:
    """Least, typical (what is optimised for) and greatest shape of an input."""
    least, typical, greatest = (
        resolve(tensor, {"batch": batch, "images": batch, "tokens": tokens, "cache_length": profile.cache_length})
        for batch, tokens in zip(profile.batch, profile.tokens, strict=True)
    )
    return least, typical, greatest


def resolve(tensor: Tensor, sizes: Mapping[str, int]) -> Shape:
    """The tensor's shape with numbers for names."""
    return tuple(sizes[dim] if isinstance(dim, str) else dim for dim in tensor.shape)


def top_k_limit(vocab: int) -> int:
    """The greatest top-k that the draft sampler can do, of that many tokens."""
    return min(vocab, MOST_TOP_K)


def profiles_of(manifest: Manifest, part: str, max_batch: int) -> tuple[Profile, ...]:
    """The profiles of one part's plan; a step takes the first whose `tokens` hold its length.

    A transformer decodes (one token), verifies (up to L + 1, also a draft's catch-up), and prefills a condition longer
    than that. The decode profile admits two tokens because fused attention kernels want a dynamic length. The cache
    length is fixed: the KV-cache-update layer takes no other. The sampler follows the draft's steps. Other graphs run
    one picture at a time.
    """
    spec = manifest.draft if part == SAMPLER else manifest.parts()[part]
    if not isinstance(spec, TransformerSpec):
        return (Profile(name="picture", batch=(1, 1, 1)),)
    rows = (1, BRANCHES * max_batch, BRANCHES * max_batch)
    longest = max(manifest.max_draft_length + 1, 2)
    prefix = manifest.prefix_length
    tokens = {"decode": (1, 1, 2)}
    if longest > 2:
        tokens["verify"] = (3, min(TYPICAL_DRAFT + 1, longest), longest)
    if prefix > longest:
        tokens["prefill"] = (longest + 1, prefix, prefix)
    return tuple(
        Profile(name=name, batch=rows, tokens=sizes, cache_length=spec.positions) for name, sizes in tokens.items()
    )

"""`coolsd-trt build`: checkpoints to a bundle."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...engines.backends import BACKENDS
from ...engines.manifest import MAX_SIDE, EngineSet, LoweringName, Manifest, PrecisionName
from ...engines.trt.flavour import FLAVOURS
from ...engines.trt.plans import PlanRequest, build_plans, check_request, needed_lowering
from ...export.hub import FORM as HUB_FORM
from ...export.hub import ROLES, download, parse_reference
from ...export.neighbors import DEFAULT_COLUMNS
from ...export.random_weights import SIZES, random_checkpoints
from ...export.request import DEFAULT_MAX_DRAFT, BuildRequest, BuildResult
from ...runtime.config import MAX_DRAFT
from ...runtime.errors import InputError
from .build_progress import BuildProgress
from .console import human_size, plain_table, stderr, stdout

Out = Annotated[Path, typer.Option(help="The bundle to write (a folder).")]
Target = Annotated[Path | None, typer.Option(help="Target: a LlamaGen file, or a folder with it.")]
ImageDecoder = Annotated[Path | None, typer.Option(help="VQ tokenizer checkpoint: a file, or a folder with it.")]
Draft = Annotated[Path | None, typer.Option(help="EAGLE draft: its folder. Without it only rule `ar` runs.")]
TextEncoder = Annotated[
    Path | None, typer.Option(help="T5 folder, for targets that take captions. Without it captions come encoded.")
]
MaxDraft = Annotated[int, typer.Option(min=0, max=MAX_DRAFT, help="Longest draft the bundle has cache room for.")]
ClassNames = Annotated[
    Path | None, typer.Option(help="JSON list of class names; default: class_names.json beside the target.")
]
Lowering = Annotated[
    LoweringName | None,
    typer.Option(help="How graphs write the cache and attend; default: what suits the installed onnxruntime."),
]
Precision = Annotated[
    PrecisionName,
    typer.Option(
        help="Of target and draft; the other parts stay fp32. int8 and int4 are lossy (the build prints what they "
        "cost); bf16 is for TensorRT alone."
    ),
]
BlockSize = Annotated[int, typer.Option(help="int4 weights that share a scale: 32 is more exact, 128 smaller.")]
BackendOption = Annotated[
    str,
    typer.Option(help="ort-cpu, ort-cuda or ort-trt: the graphs alone; trt-rtx or trt: TensorRT plans beside them."),
]
Capabilities = Annotated[
    list[str] | None,
    typer.Option(help="GPU generation of the plans, like 8.9; may be repeated; default: this machine's GPU."),
]
MaxBatch = Annotated[int, typer.Option(min=1, help="Pictures that may share a pass of the plans.")]
Heads = Annotated[int | None, typer.Option(min=1, help="Attention heads, if the target does not say.")]
Grid = Annotated[
    int | None, typer.Option(min=1, max=MAX_SIDE, help="Image tokens per side, if the target does not say.")
]
ImageEncoder = Annotated[
    bool, typer.Option("--image-encoder", help="Put the tokenizer's encoder into the bundle, too.")
]
Neighbors = Annotated[
    int, typer.Option(min=0, help="Nearest codes kept of each code, for the LANTERN rules; 0 = none.")
]
FromHub = Annotated[
    list[str] | None,
    typer.Option(
        metavar=HUB_FORM,
        help=f"Download a checkpoint from the Hugging Face hub; may be repeated. ROLE: {', '.join(ROLES)}; default: "
        "target. PATH: a file or folder of the repository; default: its safetensors. Without this option nothing is "
        "ever downloaded.",
    ),
]
RandomWeights = Annotated[
    str | None,
    typer.Option(help=f"Instead of checkpoints, random weights of a released size: {', '.join(SIZES)}."),
]


def build(
    out: Out,
    target: Target = None,
    image_decoder: ImageDecoder = None,
    draft: Draft = None,
    text_encoder: TextEncoder = None,
    max_draft: MaxDraft = DEFAULT_MAX_DRAFT,
    class_names: ClassNames = None,
    lowering: Lowering = None,
    precision: Precision = "fp32",
    block_size: BlockSize = 32,
    backend: BackendOption = "ort-cpu",
    compute_capability: Capabilities = None,
    max_batch: MaxBatch = 8,
    heads: Heads = None,
    grid: Grid = None,
    image_encoder: ImageEncoder = False,
    neighbors: Neighbors = DEFAULT_COLUMNS,
    from_hub: FromHub = None,
    random_weights: RandomWeights = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the random weights.")] = 0,
) -> None:
    """Turn checkpoints into a bundle. Does nothing when the bundle is already there and intact."""
    plans = _plan_request(backend, tuple(compute_capability or ()), max_batch)
    if plans is not None:
        lowering = lowering or needed_lowering(plans.flavour)
    start = time.perf_counter()
    given = {"target": target, "image_decoder": image_decoder, "draft": draft, "text_encoder": text_encoder}
    sources = _sources(given, from_hub or [], random_weights, seed)
    request = BuildRequest(
        **sources,
        max_draft_length=max_draft,
        class_names=class_names,
        lowering=lowering,
        heads=heads,
        grid=grid,
        image_encoder=image_encoder,
        precision=precision,
        tensorrt=plans is not None or (backend != "ort-cpu" and precision != "bf16"),
        block_size=block_size,
        neighbors=neighbors,
    )
    with BuildProgress() as bar:
        result = _exporter()(request, out, bar.stage, bar.weights)
    _print_result(result, out, time.perf_counter() - start)
    if plans is not None:
        _build_plans(out, plans)


def _exporter() -> Callable[..., BuildResult]:
    """`build_bundle`; only builds need the packages that it imports."""
    try:
        from ...export.build import build_bundle
    except ModuleNotFoundError as error:
        raise InputError(
            f"build needs {error.name}, which is not installed. Install it: pip install 'coolsd-trt[export]'."
        ) from None
    return build_bundle


def _print_result(result: BuildResult, out: Path, seconds: float) -> None:
    if result.cached:
        state = f"is up to date ({seconds:.1f} s): same checkpoints, options, exporter. Nothing was done."
        stdout.print(f"{out} {state}", soft_wrap=True)
        return
    for note in result.notes:
        stderr.print(f"note: {note}", soft_wrap=True)
    stdout.print(parts_table(result.manifest))
    if line := cost_line(result.manifest):
        stdout.print(line, soft_wrap=True)
    stdout.print(f"built {out} in {seconds:.1f} s", soft_wrap=True)


def cost_line(manifest: Manifest) -> str:
    """What the target's precision costs; empty where the build did not measure it."""
    target = manifest.target
    cost = target.precision_cost
    if cost is None:
        return ""
    return (
        f"{target.precision} moves the target's next-token distribution by KL {cost.kl:.2g}, total variation "
        f"{cost.tv:.2g} (mean of {cost.positions} positions, on the CPU)"
    )


def _plan_request(backend: str, capabilities: tuple[str, ...], max_batch: int) -> PlanRequest | None:
    """None for backends that run the graphs as they are. What can't work fails before the checkpoints are read."""
    if backend not in BACKENDS:
        raise InputError(f"--backend {backend!r}: no such backend. Expected one of: {', '.join(BACKENDS)}.")
    flavour = next((name for name in FLAVOURS if name == backend), None)
    if flavour is None:
        if capabilities:
            raise InputError(f"--compute-capability is for TensorRT plans, and {backend} has none. Leave it out.")
        return None
    request = PlanRequest(flavour, capabilities, max_batch)
    check_request(request)
    return request


def _build_plans(out: Path, request: PlanRequest) -> None:
    start = time.perf_counter()
    with stderr.status("plans") as status:
        results = build_plans(out, request, report=lambda stage: status.update(f"plans: {stage}"))
    seconds = time.perf_counter() - start
    stdout.print(plans_table([result.engines for result in results]))
    for result in results:
        state = "up to date, nothing was done" if result.cached else "built"
        stdout.print(f"{result.engines.key}: {state}")
    stdout.print(f"plans took {seconds:.1f} s")


def plans_table(sets: Sequence[EngineSet]) -> object:
    """One row per TensorRT plan: where it runs, size, activation memory, build time."""
    table = plain_table("plan", "for", "precision", "batch", "size", "workspace", "built in", "by")
    for engines in sets:
        for part, plan in engines.plans.items():
            size, workspace = human_size(plan.file.size), human_size(plan.workspace)
            place = (f"sm {engines.compute_capability}", engines.precision, str(engines.max_batch))
            made = (f"{plan.seconds:.1f} s", f"{engines.flavour} {engines.version}")
            table.add_row(part, *place, size, workspace, *made)
    return table


def _sources(
    given: dict[str, Path | None], from_hub: list[str], random_weights: str | None, seed: int
) -> dict[str, Any]:
    """What the bundle is made from, by field of `BuildRequest`."""
    options = {name: f"--{name.replace('_', '-')}" for name in given}
    references = [parse_reference(text) for text in from_hub]
    used = [options[name] for name, path in given.items() if path is not None]
    if random_weights is not None:
        for option in [*used, *["--from-hub"] * bool(references)]:
            raise InputError(f"{option} and --random-weights exclude each other. Give one.")
        return dict(random_checkpoints(random_weights, seed))
    used += [f"--{reference.role}" for reference in references]
    for option in used:
        if used.count(option) > 1:
            raise InputError(f"{option} is given twice, here or as --from-hub {option[2:]}=.... Give one.")
    for name in ("target", "image_decoder"):
        if options[name] not in used:
            raise InputError(
                f"{options[name]} is missing. Give the checkpoint, --from-hub {options[name][2:]}=REPO, or "
                "--random-weights SIZE."
            )
    return {**given, **{reference.role.replace("-", "_"): download(reference) for reference in references}}


def parts_table(manifest: Manifest) -> object:
    """One row per engine: parameters, precision, size on disk."""
    table = plain_table("part", "parameters", "layers", "precision", "size", "file")
    for name, part in manifest.parts().items():
        size = human_size(sum(record.size for record in part.files))
        layers = str(getattr(part, "layers", "-"))
        table.add_row(name, f"{part.parameters / 1e6:.2f} M", layers, part.precision, size, part.files[0].name)
    return table

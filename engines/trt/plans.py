"""The plans of a bundle: built once per TensorRT, GPU generation and size, kept under `engines/<key>/`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...runtime.errors import BackendError, BundleError, InputError
from ...runtime.files import replacing_folder, sweep
from ..bundle import REBUILD, Bundle, record_file, replace_manifest
from ..cuda import probe_gpu
from ..manifest import PLANS_FOLDER, EngineSet, FileRecord, FlavourName, GraphSpec, LoweringName, Manifest, PlanRecord
from .build import PlanBuilder, capability_enum
from .flavour import FLAVOURS, Flavour, load_module, lowering_for, parse_capability
from .profiles import SAMPLER, profiles_of

# The other parts run before the first token or not at all, and stay on onnxruntime.
PLANNED_PARTS = ("target", "draft", SAMPLER, "image decoder", "caption projection")


@dataclass(frozen=True)
class PlanRequest:
    """Which plans to build. capabilities: GPU generations like "8.9"; empty: this machine's GPU. max_batch: pictures
    that may share a pass."""

    flavour: FlavourName
    capabilities: tuple[str, ...] = ()
    max_batch: int = 8


@dataclass(frozen=True)
class PlanResult:
    """engines: the plans that now exist. cached: True when they already did."""

    engines: EngineSet
    cached: bool


def build_plans(
    path: Path, request: PlanRequest, report: Callable[[str], None] = lambda stage: None
) -> list[PlanResult]:
    """Add plans to the bundle at `path`, one set per capability; sets that are there and intact are left alone.

    Each set is whole or absent: its files get their place before the manifest names them.
    Args: report: called with the stage that begins ("8.9 target", ...).
    Raises: InputError for a bad option; BackendError when this TensorRT can't be used or refuses a graph.
    """
    capabilities = check_request(request)
    bundle = Bundle.open(path)
    check_quantisation(path, bundle.manifest.target)
    flavour = FLAVOURS[request.flavour]
    trt = load_module(flavour)
    found, needed = bundle.manifest.target.lowering, lowering_for(flavour, trt)
    if found != needed:
        raise InputError(
            f"{path}: its lowering is {found}; {flavour.module} {trt.__version__} wants {needed}. Build it again with "
            f"--lowering {needed}."
        )
    return [_build_set(bundle, trt, flavour, capability, request.max_batch, report) for capability in capabilities]


def check_request(request: PlanRequest) -> list[str]:
    """What can be said before any graph exists. Returns: the capabilities to build for.

    Raises: InputError for a bad option; BackendError when this TensorRT can't be used here.
    """
    if request.max_batch < 1:
        raise InputError(f"max_batch = {request.max_batch}: it must be at least 1.")
    flavour = FLAVOURS[request.flavour]
    capabilities = _capabilities(flavour, request.capabilities)
    trt = load_module(flavour)
    if flavour.cross_builds:
        for capability in capabilities:
            capability_enum(trt, capability)
    return capabilities


def check_quantisation(path: Path, spec: GraphSpec) -> None:
    """Raises: InputError for graphs that TensorRT can't read."""
    if spec.quantisation == "dynamic":
        raise InputError(
            f"{path}: its {spec.precision} graphs are made for the CPU and use MatMulInteger, which TensorRT does not "
            f"read. Build it again from the checkpoints: coolsd-trt build ... --precision {spec.precision} --backend "
            "trt-rtx."
        )


def needed_lowering(name: FlavourName) -> LoweringName:
    """Raises: BackendError when this TensorRT can't be used here."""
    flavour = FLAVOURS[name]
    return lowering_for(flavour, load_module(flavour))


def planned_parts(manifest: Manifest) -> dict[str, GraphSpec]:
    """The graphs that get plans, by name."""
    return {part: spec for part, spec in manifest.parts().items() if part in PLANNED_PARTS}


def find_plans(manifest: Manifest, flavour: FlavourName, version: str, capability: str) -> EngineSet:
    """The plans that fit; of several sizes the largest batch.

    Raises: BundleError naming what the bundle has, what this machine is, and the command that rebuilds.
    """
    rebuild = f"Build them: coolsd-trt build ... --backend {flavour} --compute-capability {capability}."
    candidates = plans_of(manifest, flavour)
    right_gpu = [engines for engines in candidates if engines.compute_capability == capability]
    if not right_gpu:
        found = ", ".join(sorted({engines.compute_capability for engines in candidates}))
        raise BundleError(
            f"backend {flavour}: the bundle's plans are for compute capability {found}, this GPU has {capability}. "
            f"{rebuild}"
        )
    fitting = [engines for engines in right_gpu if engines.version == version]
    if not fitting:
        found = ", ".join(sorted({engines.version for engines in right_gpu}))
        raise BundleError(
            f"backend {flavour}: the bundle's plans were built by version {found}, {version} is installed. {rebuild}"
        )
    return max(fitting, key=lambda engines: engines.max_batch)


def plans_of(manifest: Manifest, flavour: FlavourName) -> list[EngineSet]:
    """All plans of a flavour. Raises: BundleError when there are none."""
    candidates = [engines for engines in manifest.engine_sets if engines.flavour == flavour]
    if not candidates:
        others = sorted({engines.flavour for engines in manifest.engine_sets})
        found = f"only plans of {', '.join(others)}" if others else "no TensorRT plans"
        raise BundleError(
            f"backend {flavour}: the bundle has {found}. Build them: coolsd-trt build ... --backend {flavour}."
        )
    return candidates


def _capabilities(flavour: Flavour, asked: tuple[str, ...]) -> list[str]:
    wanted = list(dict.fromkeys(parse_capability(text) for text in asked))
    if flavour.cross_builds and wanted:
        return wanted
    try:
        local = probe_gpu().compute_capability
    except BackendError as error:
        if flavour.cross_builds:
            raise InputError(f"--compute-capability is missing, and this machine can't tell: {error}") from None
        raise BackendError(
            f"backend {flavour.name}: TensorRT builds for the GPU it builds on. {error} Build on the machine that will "
            "generate, or use --backend trt-rtx, which builds anywhere."
        ) from None
    if wanted not in ([], [local]):
        raise InputError(
            f"--compute-capability {', '.join(wanted)}: TensorRT builds for the GPU it builds on, and this one has "
            f"{local}. Leave the option out, or use --backend trt-rtx."
        )
    return [local]


def _build_set(
    bundle: Bundle, trt: Any, flavour: Flavour, capability: str, max_batch: int, report: Callable[[str], None]
) -> PlanResult:
    # Read again: the set before this one has been added meanwhile.
    manifest = Bundle.open(bundle.path, verify=False).manifest
    precision = manifest.target.precision
    key = f"{flavour.name}-{trt.__version__}-sm{capability.replace('.', '')}-{precision}-b{max_batch}"
    digest = _builder_digest()
    for engines in manifest.engine_sets:
        if engines.key == key and engines.builder == digest and _intact(bundle, engines):
            return PlanResult(engines, cached=True)

    folder = bundle.path / PLANS_FOLDER / key
    timings = folder.with_name(f"{flavour.name}-{trt.__version__}-sm{capability.replace('.', '')}.timing")
    builder = PlanBuilder(trt, capability, None) if flavour.cross_builds else PlanBuilder(trt, None, timings)
    sweep(folder.parent)
    with replacing_folder(folder) as temporary:
        plans = {}
        for part, spec in planned_parts(manifest).items():
            report(f"{capability} {part}")
            profiles = profiles_of(manifest, part, max_batch)
            built = builder.build(bundle.file(spec.files[0]), spec, profiles)
            file = temporary / f"{part.replace(' ', '_')}.plan"
            file.write_bytes(memoryview(built.data))
            plans[part] = PlanRecord(
                file=_placed(file, key),
                graph=spec.digest,
                workspace=built.workspace,
                seconds=built.seconds,
                profiles=profiles,
                layers=built.layers,
            )
    engines = EngineSet(
        key=key,
        flavour=flavour.name,
        version=trt.__version__,
        compute_capability=capability,
        precision=precision,
        max_batch=max_batch,
        builder=digest,
        plans=plans,
    )
    others = tuple(other for other in manifest.engine_sets if other.key != key)
    replace_manifest(bundle, manifest.model_copy(update={"engine_sets": (*others, engines)}))
    return PlanResult(engines, cached=False)


def _placed(file: Path, key: str) -> FileRecord:
    record = record_file(file)
    return record.model_copy(update={"name": f"{PLANS_FOLDER}/{key}/{record.name}"})


def check_plans(bundle: Bundle, engines: EngineSet, *, verify: bool = True) -> None:
    """Every part has a plan, of its own graph, with the content the manifest lists.

    Raises: BundleError naming the file; nothing is deserialised for it.
    """
    for part, spec in planned_parts(bundle.manifest).items():
        plan = engines.plans.get(part)
        if plan is None or plan.graph != spec.digest:
            found = "no plan" if plan is None else f"{plan.file.name}, which was made from another graph"
            raise BundleError(f"{bundle.path}: the manifest has {found} for the {part}. {REBUILD}")
        bundle.check(plan.file, verify=verify)


def _intact(bundle: Bundle, engines: EngineSet) -> bool:
    try:
        check_plans(bundle, engines)
    except BundleError:
        return False
    return True


def _builder_digest() -> str:
    """Changes whenever the code that shapes plans does, so a stale plan is never mistaken for a fresh one."""
    digest = hashlib.sha256()
    for name in ("build.py", "profiles.py"):
        digest.update((Path(__file__).parent / name).read_bytes())
    return digest.hexdigest()

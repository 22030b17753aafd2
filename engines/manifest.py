"""The schema of `manifest.json`, the description every bundle starts with."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..runtime.condition import Condition
from ..runtime.config import MAX_DRAFT, SamplingConfig, SpeculativeConfig
from .consistency import problems

SCHEMA_VERSION = 1
# How a graph writes its cache and attends, see `export.graph.attention`.
LoweringName = Literal["tensor_scatter", "portable"]
# Of a graph's matrices. Floats are also the type of its caches and of what passes between its layers; beside integers
# those are float32 in graphs made for the CPU, and fp16 in those made for TensorRT. Logits and hidden states are always
# float32.
PrecisionName = Literal["fp32", "fp16", "bf16", "int8", "int4"]
# dynamic: integer products, with activations rounded on the way; onnxruntime alone reads it. weight-only: matrices are
# stored as integers and widened before each product, which every backend reads.
QuantisationName = Literal["none", "dynamic", "weight-only"]
# TensorRT-RTX, which builds anywhere, and TensorRT, which builds on the GPU it builds for.
FlavourName = Literal["trt-rtx", "trt"]
MANIFEST_NAME = "manifest.json"
# Where plans are, each set in a folder of its own.
PLANS_FOLDER = "engines"
# Far beyond any released model, and small enough that what is made from them fits into memory.
MAX_SIDE = 256
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]
Size = Annotated[int, Field(ge=1, le=1 << 24)]
Pixels = Annotated[int, Field(ge=1, le=1 << 15)]


# Of a file or folder: neither hidden nor a way out.
_NAME = r"\w[\w.+-]*"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileRecord(_Part):
    """One file of the bundle. name: relative to it and inside it. size in bytes."""

    name: str = Field(pattern=rf"^({PLANS_FOLDER}/{_NAME}/)?{_NAME}$")
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class Tensor(_Part):
    """One graph input or output; symbolic dimensions are names."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class GraphSpec(_Part):
    """A graph: its files (the .onnx first), its inputs and outputs. block_size: int4 weights that share a scale."""

    files: tuple[FileRecord, ...] = Field(min_length=1)
    precision: PrecisionName = "fp32"
    quantisation: QuantisationName = "none"
    block_size: int | None = None
    parameters: int = Field(ge=0)
    inputs: tuple[Tensor, ...] = Field(min_length=1)
    outputs: tuple[Tensor, ...] = Field(min_length=1)

    @property
    def digest(self) -> str:
        """Of the graph and its weights."""
        return hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()


class PrecisionCost(_Part):
    """How far a reduced precision moves the next-token distribution, on average over positions: KL divergence in nats,
    and total variation."""

    kl: float
    tv: float
    positions: int


class TransformerSpec(GraphSpec):
    """A target or draft graph, with the sizes its caches are allocated from. precision_cost: against fp32, for
    targets of another precision that the CPU can run. gqa: the same graph with onnxruntime's fastest attention, where
    that can serve it. chains, gpu_chains: by L - 1, a draft's whole chain of L tokens in one graph, for onnxruntime's
    CPU and CUDA providers. All read the data file of `files`."""

    lowering: LoweringName
    gqa: FileRecord | None = None
    chains: tuple[FileRecord, ...] = ()
    gpu_chains: tuple[FileRecord, ...] = ()
    layers: int = Field(ge=1, le=1000)
    kv_heads: Size
    head_dim: int = Field(ge=2, le=1 << 16)
    hidden_size: Size
    vocab_size: Size
    precision_cost: PrecisionCost | None = None
    positions: Size = Field(description="rows of the RoPE table: the longest sequence")

    @property
    def cache_dtype(self) -> str:
        return next(tensor.dtype for tensor in self.inputs if tensor.name == "past_key_0")

    @property
    def cache_itemsize(self) -> int:
        """Bytes of a number in a cache; NumPy alone does not know bfloat16."""
        return 4 if self.cache_dtype == "float32" else 2


class TextEncoderSpec(GraphSpec):
    """The graph from tokens to text features. tokenizer: its `tokenizer.json`."""

    tokenizer: FileRecord


class ImageDecoderSpec(GraphSpec):
    """The graph from codes to pixels. image_size: (height, width)."""

    image_size: tuple[Pixels, Pixels]


class Profile(_Part):
    """One kind of step that a plan is optimised for. batch, tokens: least, typical and greatest size of these
    dimensions."""

    name: str
    batch: tuple[int, int, int]
    tokens: tuple[int, int, int] = (1, 1, 1)
    cache_length: int = 0


class PlanRecord(_Part):
    """A TensorRT engine. graph: digest of what it was made from. workspace: bytes of device memory for activations.
    profiles: in the plan's order. layers: of the network it was built from, before TensorRT fused them, counted by
    TensorRT's names."""

    file: FileRecord
    graph: str
    workspace: int = Field(ge=0)
    seconds: float = Field(ge=0, description="build time")
    profiles: tuple[Profile, ...]
    layers: dict[str, int]


class EngineSet(_Part):
    """The plans of one TensorRT for one GPU generation.

    builder: digest of the code that built them. max_batch: pictures per pass. plans: by part, see `Manifest.parts`.
    """

    key: str = Field(pattern=f"^{_NAME}$")
    flavour: FlavourName
    version: str
    compute_capability: str = Field(pattern=r"^\d+\.\d$")
    precision: PrecisionName
    max_batch: int = Field(ge=1)
    builder: str
    plans: dict[str, PlanRecord]


class Source(_Part):
    """A checkpoint the bundle was made from. role: target, draft or image_decoder."""

    role: str
    path: str
    sha256: str


class Manifest(_Part):
    """Everything a reader needs before it opens an engine file."""

    schema_version: int = SCHEMA_VERSION
    name: str
    family: str
    build_key: str = Field(description="hash of the sources, the options and the exporter; equal key, equal bundle")
    condition: Condition = Field(discriminator="kind")
    grid: tuple[Side, Side]
    prefix_length: Size
    max_draft_length: int = Field(ge=0, le=MAX_DRAFT)
    target: TransformerSpec
    draft: TransformerSpec | None = None
    draft_sampler: GraphSpec | None = Field(default=None, description="between the steps of a chain, for TensorRT")
    image_decoder: ImageDecoderSpec
    image_encoder: GraphSpec | None = None
    caption_projection: GraphSpec | None = Field(default=None, description="only when the condition is a caption")
    text_encoder: TextEncoderSpec | None = None
    neighbors: FileRecord | None = None
    engine_sets: tuple[EngineSet, ...] = Field(default=(), description="TensorRT plans; none until they are built")
    sampling: SamplingConfig
    speculative: SpeculativeConfig
    sources: tuple[Source, ...]
    tools: dict[str, str]

    @model_validator(mode="after")
    def _consistent(self) -> Manifest:
        for problem in problems(self):
            raise ValueError(problem)
        return self

    def parts(self) -> dict[str, GraphSpec]:
        """The graphs it has, by name."""
        parts = {
            "target": self.target,
            "draft": self.draft,
            "draft sampler": self.draft_sampler,
            "image decoder": self.image_decoder,
            "image encoder": self.image_encoder,
            "caption projection": self.caption_projection,
            "text encoder": self.text_encoder,
        }
        return {name: part for name, part in parts.items() if part is not None}

    def files(self) -> list[FileRecord]:
        """All files the bundle must have beside the manifest; plans are checked by those who use them."""
        records = [record for part in self.parts().values() for record in part.files]
        for part in (self.target, self.draft):
            if part is not None:
                records += [part.gqa] if part.gqa else []
                records += (*part.chains, *part.gpu_chains)
        if self.text_encoder:
            records.append(self.text_encoder.tokenizer)
        return [*records, self.neighbors] if self.neighbors else records

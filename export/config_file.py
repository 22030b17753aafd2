"""The fields of a checkpoint's `config.json` that a build reads, with their ranges. Others are left alone."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from ..engines.manifest import MAX_SIDE
from ..runtime.config import describe
from ..runtime.errors import InputError
from .checkpoint import Checkpoint


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, allow_inf_nan=False)


class TargetConfig(_Config):
    """heads and block_size (image tokens) are None where the checkpoint does not say. sampling, speculative: defaults
    of the bundle that differ from ours, by field of `SamplingConfig` and `SpeculativeConfig`."""

    name: str = ""
    heads: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("n_head", "num_attention_heads"))
    block_size: int | None = Field(default=None, ge=1, le=MAX_SIDE**2)
    norm_eps: float = Field(default=1e-5, gt=0, lt=1, validation_alias=AliasChoices("norm_eps", "rms_norm_eps"))
    rope_base: float = Field(default=10000.0, gt=1)
    sampling: dict[str, Any] = {}
    speculative: dict[str, Any] = {}


class DraftConfig(_Config):
    """heads: None where the checkpoint does not say. bias: whether `fc` has one. input_type: see `eagle.ZERO_ROWS`."""

    heads: int | None = Field(default=None, ge=1, alias="num_attention_heads")
    norm_eps: float = Field(default=1e-6, gt=0, lt=1, alias="rms_norm_eps")
    bias: bool = True
    input_type: str | None = None


class TextEncoderConfig(_Config):
    """Of T5."""

    max_distance: int = Field(default=128, ge=1, alias="relative_attention_max_distance")
    norm_eps: float = Field(default=1e-6, gt=0, lt=1, alias="layer_norm_epsilon")


Fields = TypeVar("Fields", bound=_Config)


def read_config(fields: type[Fields], checkpoint: Checkpoint) -> Fields:
    """What the checkpoint says; null is the same as nothing. Raises: InputError naming the file and the field."""
    given = {name: value for name, value in checkpoint.config.items() if value is not None}
    try:
        return fields.model_validate(given)
    except ValidationError as error:
        raise InputError(f"{checkpoint.path.with_name('config.json')}: {describe(error)}") from None

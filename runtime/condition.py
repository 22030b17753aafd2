"""What a picture is made from, a class or a caption, and how either one enters the target's first pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from .errors import InputError

# Stands in `input_ids` where the position's embedding comes from `features`.
NO_TOKEN = -1


class ClassCondition(BaseModel):
    """Class-conditional models. names: index = class id. id_offset: input id of class 0 (class embeddings follow the
    token embeddings). null_class: the class of the unconditional CFG branch."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["class"] = "class"
    names: tuple[str, ...] = Field(min_length=1)
    id_offset: int
    null_class: int


class CaptionCondition(BaseModel):
    """Text-conditional models. slots: condition positions, padded on the left. feature_size: width of the text
    encoder's output. padded_rows: what padding attends to, which a draft can see in the target's hidden states:
    "self" alone (LlamaGen), or "caption", earlier padding and the whole caption (LANTERN's port of it)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["caption"] = "caption"
    slots: int = Field(ge=1)
    feature_size: int = Field(ge=1)
    padded_rows: Literal["self", "caption"]


Condition = ClassCondition | CaptionCondition


class CaptionProjection(Protocol):
    """Text features to the target's embeddings."""

    def project(self, features: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """[N, slots, feature_size] -> [N, slots, H], and [slots, H] of the unconditional branch."""


@dataclass(frozen=True)
class Prompt:
    """One picture's condition, P positions.

    parameters: what the picture's metadata says of it. input_ids: [2, P] int64, conditional and unconditional.
    mask: [P, P] bool, row q may attend to column c; its last row is also what image tokens see of the condition.
    features: [2, P, H] float32, the embeddings of `NO_TOKEN` positions; None when there are none.
    """

    parameters: dict[str, Any]
    input_ids: NDArray[np.int64]
    mask: NDArray[np.bool_]
    features: NDArray[np.float32] | None = None

    @property
    def visible(self) -> NDArray[np.bool_]:
        last_row: NDArray[np.bool_] = self.mask[-1]
        return last_row


def class_prompts(condition: ClassCondition, class_ids: Sequence[int]) -> list[Prompt]:
    """One prompt per class id. Raises: InputError for an unknown id."""
    known = len(condition.names)
    for class_id in class_ids:
        if not 0 <= class_id < known:
            raise InputError(f"class id {class_id}: this model knows 0 to {known - 1}.")
    return [
        Prompt(
            parameters={"class": condition.names[class_id], "class_id": int(class_id)},
            input_ids=np.array([[class_id], [condition.null_class]], dtype=np.int64) + condition.id_offset,
            mask=np.ones((1, 1), dtype=np.bool_),
        )
        for class_id in class_ids
    ]


def caption_prompts(
    condition: CaptionCondition,
    projection: CaptionProjection,
    features: NDArray[np.floating[Any]],
    mask: NDArray[Any] | None,
) -> list[Prompt]:
    """One prompt per caption.

    Args: features [N, T, feature_size], the text encoder's output, padded on the right; mask [N, T], 1 = a token of
    the caption (None: all are). T may be less than the model's slots.
    Raises: InputError when the shapes do not fit the model, or a caption has no token.
    """
    features, valid = _checked_captions(condition, features, mask)
    padded = np.zeros((len(features), condition.slots, condition.feature_size), dtype=np.float32)
    visible = np.zeros(padded.shape[:2], dtype=np.bool_)
    for i, tokens in enumerate(valid):
        # LlamaGen's roll: the valid rows move to the end in their order, and padding becomes zero.
        caption = features[i, tokens]
        padded[i, condition.slots - len(caption) :] = caption
        visible[i, condition.slots - len(caption) :] = True
    conditional, unconditional = projection.project(padded)
    return [
        Prompt(
            parameters={"caption": i},
            input_ids=np.full((2, condition.slots), NO_TOKEN, dtype=np.int64),
            mask=caption_mask(visible[i], condition.padded_rows),
            # The unconditional branch keeps the caption's mask.
            features=np.stack([conditional[i], unconditional]),
        )
        for i in range(len(features))
    ]


def caption_mask(visible: NDArray[np.bool_], padded_rows: str) -> NDArray[np.bool_]:
    """[P] valid positions -> [P, P] attention among the condition; see `CaptionCondition.padded_rows`."""
    causal = np.tri(len(visible), dtype=np.bool_)
    padding_sees = causal | visible if padded_rows == "caption" else np.eye(len(visible), dtype=np.bool_)
    mask: NDArray[np.bool_] = np.where(visible[:, None], causal & visible, padding_sees)
    return mask


def _checked_captions(
    condition: CaptionCondition, features: NDArray[np.floating[Any]], mask: NDArray[Any] | None
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    features = np.asarray(features)
    fits = features.ndim == 3 and features.shape[1] <= condition.slots and features.shape[2] == condition.feature_size
    if not fits or not len(features) or features.dtype.kind != "f":
        raise InputError(
            f"caption_features is {features.dtype} {list(features.shape)}. Expected floats [captions, up to "
            f"{condition.slots} tokens, {condition.feature_size}]: the output of this model's text encoder."
        )
    if not np.isfinite(features).all():
        raise InputError("caption_features holds NaN or infinity. Encode the captions again, in float32.")
    valid = np.ones(features.shape[:2], dtype=np.bool_) if mask is None else np.asarray(mask).astype(np.bool_)
    if valid.shape != features.shape[:2] or not valid.any(axis=1).all():
        raise InputError(
            f"caption_mask is {list(valid.shape)}. Expected {list(features.shape[:2])} like caption_features, "
            "with at least one 1 for each caption."
        )
    return features.astype(np.float32), valid

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coolsd_trt.runtime import InputError, SpeculativeConfig
from coolsd_trt.runtime.rules import RULES
from coolsd_trt.tools.cli.classes import resolve_class
from coolsd_trt.tools.cli.options import read_value, speculative_config

USUAL, TREE = SpeculativeConfig(), SpeculativeConfig(tree="chain")


@pytest.mark.parametrize(
    "defaults, options, words",
    [
        (USUAL, {"rule": "lossless", "delta": 3.0}, "--delta: rule 'lossless' does not read it.*cool, lin"),
        (USUAL, {"rule": "uniform", "nu": 1.0}, "--nu: rule 'uniform' does not read it"),
        (USUAL, {"floor": "none", "rule": "lantern"}, "--floor: rule 'lantern'"),
        (USUAL, {"lantern_k": 5}, "--lantern-k: rule 'cool' .* --rule lantern, lantern"),
        (SpeculativeConfig(rule="ar"), {"draft_length": 3}, "--draft-length: rule 'ar' does not read it"),
        (USUAL, {"tree_nodes": 9}, "--tree-nodes: only --tree dynamic reads it"),
        (USUAL, {"tree": "chain", "tree_branches": 2}, "--tree-branches: only --tree dynamic"),
        (USUAL, {"tree": "chain", "draft_length": 9}, "--draft-length 9: the tree drafts 5 levels"),
        (TREE, {"draft_length": 3}, "--draft-length 3: the tree drafts 5 levels.*--tree none"),
    ],
)
def test_an_option_that_would_change_nothing(defaults: SpeculativeConfig, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        speculative_config(defaults, options)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.name)
def test_every_option_that_a_rule_reads_is_taken(rule: Any) -> None:
    values = {"delta": 1.3, "nu": 0.3, "floor": "0.5", "lantern_k": 7, "lantern_delta": 0.3, "lantern_lambda": 3.0}
    values |= {"resampling": "native", "draft_length": 4, "tree": "dynamic", "tree_nodes": 20, "tree_branches": 3}
    given = {name: values[name] for name in rule.parameters}
    config = speculative_config(USUAL, {"rule": rule.name, **given})
    read = {name: 0.5 if name == "floor" else value for name, value in given.items()}
    assert config.model_dump() == {**USUAL.model_dump(), "rule": rule.name, **read}


def test_a_tree_of_the_bundle_gives_way_to_a_chain() -> None:
    config = speculative_config(TREE, {"tree": "none", "draft_length": 3})
    assert (config.tree, config.draft_length) == (None, 3)


@pytest.mark.parametrize(
    "content, found",
    [("5", "holds 5"), ("null", "holds None"), ("[" * 200_000, "not a readable")],
    ids=["5", "null", "["],
)
def test_a_file_that_is_no_tree(tmp_path: Path, content: str, found: str) -> None:
    (tmp_path / "t.json").write_text(content)
    with pytest.raises(InputError, match=rf"--tree .*t\.json: .*{found}"):
        read_value("tree", str(tmp_path / "t.json"))


@pytest.mark.parametrize("text, words", [("", "it is empty"), (" ", "it is empty"), ("9" * 5000, "no such class")])
def test_texts_that_are_no_class(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        resolve_class(text, ["cat", "dog"])

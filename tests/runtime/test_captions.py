from __future__ import annotations

import pytest
from coolsd_trt.runtime.captions import clean_caption


@pytest.mark.parametrize(
    "caption, cleaned",
    [
        ("A red fox in the snow, oil on canvas", "a red fox in the snow, oil on canvas"),
        ("  Two cats:  one black ", "two cats: one black"),
        ("See https://example.com/cat.png now", "see now"),
        ("<b>bold</b> cat &amp; dog", "bold cat dog"),
        ("photo by @someone #123", "photo by"),
        ("IMG_20240101.jpg of a dog", "of a dog"),
        ("a cat — “smiling”", 'a cat - "smiling"'),
        ("this-is-my-very-cute-cat", "this is my very cute cat"),
        ("a well-known cat", "a well-known cat"),
        ('"quoted"', "quoted"),
        ("***SALE*** free shipping", "sale"),
        ("cat%20on+mat", "cat on mat"),
        ("猫 cat", "cat"),
        ("<person> waving", "person waving"),
        ("", ""),
    ],
)
def test_clean_caption(caption: str, cleaned: str) -> None:
    assert clean_caption(caption) == cleaned

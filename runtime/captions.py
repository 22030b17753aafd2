"""Captions as LlamaGen's text encoder was fed them: cleaned of what web captions drag along."""

from __future__ import annotations

import html
import re
from urllib.parse import unquote_plus

_LINK = re.compile(r"(?:https?://|www\.)\S+|\b[a-z0-9.-]+\.(?:com|co|ru|net|org|edu|gov|it)\b\S*")
_TAG = re.compile(r"<[^<>]*>")
_HANDLE = re.compile(r"@\w+")
_CJK = re.compile("[\u31c0-\u4dff\u4e00-\u9fff]+")
_FILE = re.compile(r"\S+\.(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4)")
_NUMBERS = re.compile(r"#\d+\b|\b\d{6,}\b|\b\d{1,3}(?:\.\d{1,3}){3}\b")
_DASHES = re.compile("[\u058a\u2010-\u2015\u2e3a\u2e3b\u301c\ufe58\uff0d]+")
_SYMBOLS = re.compile(r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+")
_ADVERTISING = re.compile(r"(?:worldwide\s+)?(?:free\s+)?shipping|(?:free\s)?download(?:\sfree)?")
_QUOTES = str.maketrans("`´«»“”¨‘’", '"""""""\'\'')


def clean_caption(caption: str) -> str:
    """Lower case, without links, markup, handles, file names, long numbers, CJK text and decorative punctuation.

    The steps of the reference's cleaning (which repairs broken encodings as well: this one does not), applied twice
    as it does. Ordinary captions come out in lower case and otherwise as they are.
    """
    return _clean(_clean(caption))


def _clean(caption: str) -> str:
    text = unquote_plus(caption).strip().lower().replace("<person>", "person")
    text = html.unescape(html.unescape(_TAG.sub("", _LINK.sub("", text))))
    for pattern in (_HANDLE, _CJK):
        text = pattern.sub("", text)
    text = _DASHES.sub("-", text).translate(_QUOTES)
    for pattern in (_NUMBERS, _FILE):
        text = pattern.sub("", text)
    text = re.sub(r"[\"']{2,}", '"', text)
    text = re.sub(r"\.{2,}|\s+\.\s+", " ", _SYMBOLS.sub(" ", text))
    if len(re.findall(r"[-_]", text)) > 3:  # words-joined-like-this
        text = re.sub(r"[-_]", " ", text)
    text = re.sub(r"\s+:\s+", ": ", _ADVERTISING.sub("", text))
    text = re.sub(r"(\D[,.])\b", r"\1 ", text)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"^[\"'](.+)[\"']$", r"\1", text)
    return re.sub(r"^[-'_,:;]|[-'_,:+]$", "", text).strip()

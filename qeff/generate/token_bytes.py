"""The bytes that single tokens stand for, also where they are part of a character.

Tokenizers write bytes in one of three ways: as letters of a byte-level alphabet, as ``<0xNN>``, or
as the text itself with a mark for spaces. Knows nothing of models or requests.
"""

from __future__ import annotations

import json
import re
from functools import cache

from tokenizers import Tokenizer

SPACE_MARK = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Looks tokens up by their ids."""

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._plain_ids = special_ids | frozenset(tokenizer.get_added_tokens_decoder())
        decoder = json.loads(tokenizer.to_str())["decoder"]
        self._is_byte_level = "ByteLevel" in json.dumps(decoder)

    def __getitem__(self, token: int) -> bytes:
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self._plain_ids:
            return piece.encode("utf-8")
        if self._is_byte_level:
            letters = byte_letters()
            if all(letter in letters for letter in piece):
                return bytes(letters[letter] for letter in piece)
            return piece.encode("utf-8")
        if found := _BYTE.fullmatch(piece):
            return bytes([int(found[1], 16)])
        return piece.replace(SPACE_MARK, " ").encode("utf-8")


@cache
def byte_letters() -> dict[str, int]:
    """The byte of each letter of the byte-level alphabet: printable bytes stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return letters | {chr(256 + place): byte for place, byte in enumerate(others)}

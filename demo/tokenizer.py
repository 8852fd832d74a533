# SPDX-License-Identifier: Apache-2.0
"""WordPiece tokenizer of uncased BERT models: text in, vocabulary ids out.

Source: Devlin et al., "BERT", 2018; Wu et al., "Google's Neural Machine Translation System", 2016,
section 4.1. Two steps: cut the text into words and punctuation, then cut each word into the longest
pieces in the vocabulary, left to right.
"""

import unicodedata
from collections.abc import Iterator
from pathlib import Path

UNKNOWN, FIRST, LAST = "[UNK]", "[CLS]", "[SEP]"
CONTINUES = "##"  # before every piece of a word but the first
LONGEST_WORD = 100  # longer words are unknown, which limits the time

# Characters that are not separated by spaces: each is a word of its own.
IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class Tokenizer:
    """Converts a sentence to ids by a `vocab.txt`; a piece's id is its line number."""

    def __init__(self, vocabulary: Path, longest: int) -> None:
        pieces = vocabulary.read_text(encoding="utf-8").split("\n")
        self.ids = {piece: index for index, piece in enumerate(pieces) if piece}
        self.longest = longest

    def __call__(self, text: str) -> list[int]:
        pieces = [piece for word in split_words(text) for piece in self.split_pieces(word)]
        return [self.ids[piece] for piece in (FIRST, *pieces[: self.longest - 2], LAST)]

    def split_pieces(self, word: str) -> list[str]:
        """Returns the longest known pieces of a word, left to right; else UNKNOWN for the word."""
        if len(word) > LONGEST_WORD:
            return [UNKNOWN]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            prefix = CONTINUES if start else ""
            candidates = (prefix + word[start:end] for end in range(len(word), start, -1))
            piece = next((c for c in candidates if c in self.ids), None)
            if piece is None:
                return [UNKNOWN]
            pieces.append(piece)
            start += len(piece) - len(prefix)
        return pieces


def split_words(text: str) -> Iterator[str]:
    """Yields lower-case words without accents; punctuation and ideographs are words too."""
    word = ""
    for character in unicodedata.normalize("NFD", text):
        category = unicodedata.category(character)
        if category == "Mn" or is_noise(character, category):
            continue
        if character.isspace() or stands_alone(character, category):
            if word:
                yield word.lower()
            word = ""
            if not character.isspace():
                yield character.lower()
        else:
            word += character
    if word:
        yield word.lower()


def is_noise(character: str, category: str) -> bool:
    """Returns whether a character is a control, format or replacement character."""
    return character == "\ufffd" or (category in ("Cc", "Cf", "Co") and character not in "\t\n\r")


def stands_alone(character: str, category: str) -> bool:
    # ASCII symbols such as $ and + count as punctuation, although Unicode calls them symbols.
    if character.isascii():
        return category[0] in "PS"
    code = ord(character)
    return category[0] == "P" or any(first <= code <= last for first, last in IDEOGRAPHS)

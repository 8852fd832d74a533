# SPDX-License-Identifier: Apache-2.0
"""Tests the demo's tokenizer, its NumPy model, and the numbers of its table."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import narrowfloat as nf

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from demo import checkpoint, measure, tokenizer  # noqa: E402
from demo.model import SentenceModel, gelu, softmax  # noqa: E402
from demo.tokenizer import Tokenizer, split_words  # noqa: E402

SMALL_VOCABULARY = ["[UNK]", "[CLS]", "[SEP]", "eat", "##ing", "##s", "food", ".", "un", "##able"]

# Token ids of the `tokenizers` package 0.23.3 with the model's own tokenizer.json.
WITNESSED = {
    "A man is eating food.": [101, 1037, 2158, 2003, 5983, 2833, 1012, 102],
    "Ünïcödé  naïve café, $5+3=8!": [
        *(101, 27260, 15743, 7668, 1010, 1002, 1019, 1009, 1017, 1027, 1022, 999, 102)
    ],
    "中文字 mixed words": [101, 1746, 1861, 100, 3816, 2616, 102],
    "don't stop": [101, 2123, 1005, 1056, 2644, 102],
    "a\tb\nc\r\x00d\u200b e\ufffdf": [101, 1037, 1038, 1039, 1040, 1041, 2546, 102],
    "": [101, 102],
    "x" * 150: [101, 100, 102],
}


@pytest.fixture(scope="module")
def folder() -> Path:
    try:
        return checkpoint.model_folder()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture
def small(tmp_path: Path) -> Tokenizer:
    file = tmp_path / "vocab.txt"
    file.write_text("\n".join(SMALL_VOCABULARY) + "\n", encoding="utf-8")
    return Tokenizer(file, longest=6)


def test_the_longest_piece_is_taken_first(small: Tokenizer) -> None:
    assert small.split_pieces("eatings") == ["eat", "##ing", "##s"]


def test_a_word_with_an_unknown_rest_is_unknown_as_a_whole(small: Tokenizer) -> None:
    assert small.split_pieces("eatingx") == [tokenizer.UNKNOWN]


def test_a_long_sentence_is_cut_and_still_ends_as_it_should(small: Tokenizer) -> None:
    assert small("food food food food food food") == [1, 6, 6, 6, 6, 2]


def test_words_are_lower_case_without_accents_and_punctuation_stands_alone() -> None:
    assert list(split_words("Crème brûlée: $5!")) == ["creme", "brulee", ":", "$", "5", "!"]


@pytest.mark.parametrize("text", WITNESSED)
def test_ids_are_those_of_an_outside_tokenizer(folder: Path, text: str) -> None:
    assert Tokenizer(folder / "vocab.txt", longest=256)(text) == WITNESSED[text]


def test_gelu_has_its_known_values() -> None:
    # x * Phi(x), Phi from tables of the normal distribution.
    x = np.array([-1.0, 0.0, 1.0, 2.0], dtype=np.float32)
    expected = [-0.158655, 0.0, 0.841345, 1.954500]
    np.testing.assert_allclose(gelu(x), expected, atol=1e-6)


def test_softmax_stands_large_numbers() -> None:
    values = softmax(np.array([1000.0, 1000.0 + math.log(3)], dtype=np.float64))
    np.testing.assert_allclose(values, [0.25, 0.75], rtol=1e-12)


def test_the_model_package_is_the_one_the_demo_speaks_of(folder: Path) -> None:
    checkpoint.check_model(folder)


def test_other_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / checkpoint.WEIGHTS).write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    message = f"demo: model.safetensors must have SHA-256 {checkpoint.SHA256}, got {empty}"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        checkpoint.check_model(tmp_path)


def test_the_similarity_in_float32_is_the_published_one(folder: Path) -> None:
    weights = {name: np.asarray(a) for name, a in nf.load(folder / checkpoint.WEIGHTS).items()}
    model = SentenceModel(folder, weights)
    found = model.similarity("A man is eating food.", "A man is eating a piece of bread.")
    assert found == pytest.approx(0.7553, abs=5e-5)


def test_errors_are_what_they_say() -> None:
    original = np.array([3.0, -4.0], dtype=np.float32)
    found = measure.errors([(original, np.array([3.0, -3.5], dtype=np.float32))])
    # Signal 25, noise 0.25: 20 dB. The error of 0.5 is an eighth of the largest weight.
    assert found.sqnr_db == pytest.approx(20.0)
    assert found.largest == pytest.approx(0.125)


def test_exact_weights_have_no_noise() -> None:
    original = np.array([1.0, 2.0], dtype=np.float32)
    assert measure.errors([(original, original)]) == measure.Errors(math.inf, 0.0)


def test_errors_are_counted_by_octave() -> None:
    original = np.array([1.0, 1.0, 1.0, 1.0, 0.0], dtype=np.float32)
    restored = np.array([1.0, 0.5, 0.0, 1.0 + 2.0**-10, 0.0], dtype=np.float32)
    found = measure.error_histogram([(original, restored)])
    # Exact twice, 2^-10 in the first octave, 2^-1 in the last but one, 1 in the last.
    assert found == [0.4, 0.2, *[0.0] * 8, 0.2, 0.2]


def test_the_demo_runs_and_its_similarities_hardly_move(folder: Path, tmp_path: Path) -> None:
    scheme = nf.schemes()[0]
    report = tmp_path / "page.html"
    command = [sys.executable, "-m", "demo.run", scheme, "--report", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "  0.7553  A man is eating food. / A man is eating a piece of bread.\n" in done.stdout
    row = next(line for line in done.stdout.splitlines() if line.startswith(scheme)).split()
    megabytes, shift = float(row[1]), float(row[-1])
    # F32 takes 90.9 MB. Codes of eight bits, with the norms in F32, take a little over a quarter.
    assert 22.0 < megabytes < 25.0
    assert 0 < shift < 0.03
    page = report.read_text(encoding="utf-8")
    # Nothing is loaded from elsewhere, and the page follows the reader's choice of light or dark.
    assert not re.findall(r"<script|src=|href=|url\(|https?:", page)
    assert "prefers-color-scheme: dark" in page and page.count("<circle") == 4
    assert page.count(f"{scheme}</") == 3  # in the table, the figure and the histograms

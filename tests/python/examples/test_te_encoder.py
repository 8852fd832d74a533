# SPDX-License-Identifier: Apache-2.0
"""Tests demo.te_encoder: messages if something is missing, and the data in place of CoLA."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from demo.te_encoder import __main__ as te_encoder

ROOT = Path(__file__).resolve().parents[3]
# Reads the data as the example does.
SCRIPT = """
import sys
from collections import Counter
import nltk
from datasets import load_dataset
nltk.download("punkt_tab")
for split in ("train", "validation"):
    part = load_dataset("nyu-mll/glue", "cola", split=split)
    part.set_format(type="np")
    sentences, labels = part["sentence"], part["label"]
    pairs = {}
    for sentence, label in zip(sentences, labels.tolist()):
        assert pairs.setdefault(sentence, label) == label, "a sentence has one label"
    print(split, len(sentences), len(nltk.word_tokenize(sentences[0])), labels.mean() > 0.6)
print(sys.argv[1:])
"""


def run(*arguments: str, **variables: str) -> list[str]:
    command = [sys.executable, "-m", "demo.te_encoder", *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=True, cwd=ROOT, env=environment
    )
    return done.stdout.splitlines()


def test_without_a_checkout_it_says_where_one_comes_from(tmp_path: Path) -> None:
    (line,) = run("--source", str(tmp_path))
    assert line.startswith("te_encoder: skipped, no ") and line.endswith(te_encoder.REPOSITORY)


@pytest.mark.skipif(not te_encoder.missing(te_encoder.FOR_DATA), reason="data are there")
@pytest.mark.skipif(bool(te_encoder.missing(te_encoder.FOR_MODEL)), reason="flax is not installed")
def test_sentences_stand_for_the_data_and_it_says_so(tmp_path: Path) -> None:
    script = tmp_path / te_encoder.EXAMPLE
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    lines = run("--source", str(tmp_path), "--epochs", "1")
    assert "the data are not CoLA's" in lines[0] and "1024 sentences by a rule" in lines[1]
    asked = ["train 1024 7 True", "validation 256 7 True"]
    in_bf16, in_fp8 = ["['--epochs', '1']"], ["['--epochs', '1', '--use-fp8']"]
    assert lines[2:] == [*asked, *in_bf16, *asked, *in_fp8]


def test_cola_is_read_from_a_checkout_of_its_repository(tmp_path: Path) -> None:
    folder = tmp_path / te_encoder.COLA
    folder.mkdir(parents=True)
    for name, word in (("in_domain_train", "one"), ("in_domain_dev", "two")):
        (folder / f"{name}.tsv").write_text(f'gj04\t1\t\t{word} " , .\ngj04\t0\t*\t{word} .\n')
    (folder / "out_of_domain_dev.tsv").write_text("c-05\t1\t\tthree\n")
    read = """
from datasets import load_dataset
for split in ("train", "validation"):
    part = load_dataset("nyu-mll/glue", "cola", split=split)
    print(part["sentence"], part["label"].tolist())
"""
    variables = te_encoder.environment(["datasets"], tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", read], capture_output=True, text=True, check=True, env=variables
    )
    assert done.stdout.splitlines() == [
        "['one \" , .', 'one .'] [1, 0]",
        "['two \" , .', 'two .', 'three'] [1, 0, 1]",
    ]
    refused = subprocess.run(
        [sys.executable, "-m", "demo.te_encoder", "--cola", str(folder)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert refused.returncode == 2
    assert f"needs a checkout of {te_encoder.COLA_REPOSITORY}, got {folder}" in refused.stderr

# SPDX-License-Identifier: Apache-2.0
"""Checks that every error message of the library occurs in a test, without its values."""

import ast
import re
from collections.abc import Iterator

from test_readme import ROOT

SOURCES = ("bindings", "narrowfloat", "tools")
ERRORS = (
    "InvalidArgument|Unsupported|IoError|DeviceError|Interrupted|type_error|value_error|[Rr]efuse"
)
TEXT = r'"(?:[^"\\]|\\.)*"'
THROW = re.compile(rf"\b(?:{ERRORS})\(\s*(?:fmt::format\()?\s*((?:{TEXT}\s*)+)")
# Messages without a test, by a literal part of their text, and the reasons.
WITHOUT_A_TEST = {
    "is imported when it is asked for": "ends an import that TransformerEngine itself catches",
    ": this build has no MXFP8": "a build without the scheme",
    ": amax_history must have at least one item": "the primitive checks the shape first",
    "import: narrowfloat needs PyTorch 2.15 or later, got": "an older PyTorch",
}


def parts_of(message: str) -> list[str]:
    """Returns the literal parts between the values of a message."""
    parts = (part.strip(" :;.'`") for part in re.split(r"\{[^{}]*\}", message))
    return [part for part in parts if part]


def messages_of_python(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            text = node.exc.args[0]
            match text.left if isinstance(text, ast.BinOp) else text:
                case ast.Constant(value=str(message)):
                    yield message
                case ast.JoinedStr(values=parts):
                    yield "".join(p.value if isinstance(p, ast.Constant) else "{}" for p in parts)


def messages_of_cpp(text: str) -> Iterator[str]:
    for found in THROW.finditer(text):
        yield "".join(literal[1:-1] for literal in re.findall(TEXT, found[1]))


def plain(text: str) -> str:
    """Joins adjacent literals and drops the backslashes of patterns."""
    return re.sub(r"""["']\s*[rf]{0,2}["']""", "", text.replace("\\", ""))


def text_of_tests() -> str:
    own = ROOT / "tests/docs/test_messages.py"
    files = [*ROOT.glob("tests/**/*.py"), *ROOT.glob("tests/**/*.cc"), *ROOT.glob("tests/**/*.h")]
    files += ROOT.glob("narrowfloat/**/*_test.c*")
    return plain("\n".join(p.read_text(encoding="utf-8") for p in files if p != own))


def is_tested(message: str, tests: str) -> bool:
    """Returns whether a test has the longest literal part of a message.

    A test that formats its text may lack the first one or two words of the part. If the part has
    fewer than three words, other messages may have it too. Then all parts must occur in a test,
    one after another.
    """
    parts = parts_of(message)
    part = max(parts, key=len, default="")
    if len(part.split()) < 3:
        return re.search(".{0,100}?".join(map(re.escape, parts)), tests) is not None
    rests = (rest for words in (1, 2) for rest in part.split(maxsplit=words)[words:])
    return part in tests or any(" " in r and r in tests for r in rests)


def test_messages_occur_in_tests() -> None:
    messages = [
        (path, message)
        for path in (ROOT / "python").rglob("*.py")
        for message in messages_of_python(path.read_text(encoding="utf-8"))
    ] + [
        (path, message)
        for folder in SOURCES
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".cc", ".h") and not path.stem.endswith("_test")
        for message in messages_of_cpp(path.read_text(encoding="utf-8"))
    ]
    assert len(messages) > 700, "the patterns find the messages"
    tests = text_of_tests()
    missing = {(path, plain(text)) for path, text in messages if not is_tested(plain(text), tests)}
    excepted = {
        (path, text, part) for path, text in missing for part in WITHOUT_A_TEST if part in text
    }
    assert {part for _, _, part in excepted} == set(WITHOUT_A_TEST), "an exception is not needed"
    missing -= {(path, text) for path, text, _ in excepted}
    assert sorted(f"{path.name}: {text}" for path, text in missing) == []

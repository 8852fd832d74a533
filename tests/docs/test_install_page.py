# SPDX-License-Identifier: Apache-2.0
"""Checks that the programs of docs/install.md run, and its packages and options are the build's."""

import re
from pathlib import Path

import test_readme
import update_readme

PAGE = (test_readme.ROOT / "docs" / "install.md").read_text(encoding="utf-8")
SNIPPETS = [test_readme.Snippet(*found.groups()) for found in test_readme.FENCE.finditer(PAGE)]


def snippets(language: str) -> list[test_readme.Snippet]:
    return [snippet for snippet in SNIPPETS if snippet.language == language]


def test_the_c_program_builds_against_an_installed_library_and_runs(tmp_path: Path) -> None:
    prefix, build = tmp_path / "prefix", tmp_path / "build"
    install = ["cmake", "--install", str(test_readme.BUILD), "--prefix", str(prefix)]
    test_readme.run([*install, *test_readme.COMPONENT], tmp_path)
    (program,) = snippets("c")
    (tmp_path / "main.c").write_text(program.code)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.25)\nproject(app LANGUAGES C CXX)\n"
        "find_package(narrowfloat REQUIRED)\nadd_executable(app main.c)\n"
        "target_link_libraries(app PRIVATE narrowfloat::c_api)\n"
    )
    configure = ["cmake", "-S", ".", "-B", str(build), f"-DCMAKE_PREFIX_PATH={prefix}"]
    test_readme.run(configure, tmp_path)
    test_readme.run(["cmake", "--build", str(build)], tmp_path)
    test_readme.expect(program, test_readme.run([str(build / "app")], tmp_path))


def test_an_installed_package_asks_for_no_json_library() -> None:
    config = test_readme.ROOT / "cmake" / "narrowfloat-config.cmake.in"
    asked = set(re.findall(r"find_dependency\((\w+)", config.read_text(encoding="utf-8")))
    assert asked == {"hwy", "TBB", "fmt", "Threads"}


def test_packages_to_build_are_those_that_the_scripts_install() -> None:
    text = (test_readme.ROOT / "scripts" / "packages.txt").read_text(encoding="utf-8")
    installed = {line.split("#")[0].strip() for line in text.splitlines()} - {""}
    named = set(re.findall(r"`((?:lib|nlohmann)[\w.+-]*-dev)`", PAGE))
    assert named and named <= installed
    libraries = {name for name in installed if name.endswith("-dev")}
    tests = {"libgtest-dev", "libgmock-dev", "libbenchmark-dev", "python3-dev"}
    assert libraries - tests == named


def test_options_are_those_of_cmake() -> None:
    remake = "run .venv/bin/python scripts/update_readme.py cmake-options"
    assert update_readme.section("cmake-options") == update_readme.cmake_options(), remake


def test_make_commands_and_links() -> None:
    makefile = (test_readme.ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`make ([\w-]+)", PAGE):
        assert f"\n{target}:" in makefile
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert links
    assert [link for link in links if not (test_readme.ROOT / "docs" / link).exists()] == []

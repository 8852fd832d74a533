# SPDX-License-Identifier: Apache-2.0
"""python -m pytest -p narrowfloat.te.pytest: runs a project's tests for GPUs on the CPU.

All modules below pytest's root folder are rewritten: tests, their helpers and the project's own.
"""

import ast
from importlib.machinery import ModuleSpec

import pytest
from _pytest.assertion.rewrite import AssertionRewritingHook, rewrite_asserts

from narrowfloat import te
from narrowfloat.te import _import_hook
from narrowfloat.te._explain import explain
from narrowfloat.te._settings import GENERATIONS, SETTINGS


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of `python -m narrowfloat.te`."""
    group = parser.getgroup("narrowfloat.te")
    group.addoption("--te-as", choices=GENERATIONS, help="the generation of GPUs to answer for")
    group.addoption("--te-also", default="", metavar="PKG", help="rewrites these packages too")
    group.addoption("--te-explain", action="store_true", help="lists every rewrite")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Selects the modules to rewrite, before the project's first module is imported."""
    options = early_config.known_args_namespace
    if options.te_as:
        te.emulate(options.te_as)
    te.also(options.te_also)
    if options.te_explain:
        _import_hook.OBSERVERS.append(explain)
    SETTINGS.folders.add(early_config.rootpath.resolve())
    _import_hook.LOADERS.append(_loader_of_tests)


def _loader_of_tests(spec: ModuleSpec) -> _import_hook.RewritingLoader | None:
    """Returns the loader for a module with assertions that pytest rewrites, else None."""
    hook = spec.loader
    if not isinstance(hook, AssertionRewritingHook) or spec.origin is None:
        return None
    loader = _import_hook.RewritingLoader(spec.name, spec.origin)

    def rewrite_assertions(tree: ast.Module, source: bytes, path: str) -> None:
        rewrite_asserts(tree, source, path, hook.config)

    loader.stage = rewrite_assertions
    return loader

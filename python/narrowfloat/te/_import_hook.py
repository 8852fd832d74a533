# SPDX-License-Identifier: Apache-2.0
"""Imports of chosen packages: their own files, rewritten in memory before they are compiled.

No file changes, and other packages are imported as usual.
"""

import ast
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_loader
from types import CodeType, ModuleType
from typing import Any

from narrowfloat.te import _code_cache
from narrowfloat.te._rewrite import Rewrite, rewrite
from narrowfloat.te._rules import JAX_RUNTIME, RUNTIME
from narrowfloat.te._settings import SETTINGS

# The modules that rewritten code accesses through a global variable: variable -> module.
RUNTIMES = {RUNTIME: "narrowfloat.te.runtime", JAX_RUNTIME: "narrowfloat.te.jax.runtime"}
Stage = Callable[[ast.Module, bytes, str], None]
# Modules that are replaced: name -> name of narrowfloat's module. A name that ends with a dot means
# all modules below it that have no entry of their own.
SUPPLIED: dict[str, str] = {}
# Called with the name of each module before it is searched; may raise.
GATES: list[Callable[[str], None]] = []
# Functions that wrap the run of a module's code: name -> function (module, run).
AROUND: dict[str, Callable[[ModuleType, Callable[[], None]], None]] = {}
# Functions to call after the import of a module that is not rewritten: name -> function (module).
AFTER: dict[str, Callable[[ModuleType], None]] = {}
# Called with each rewritten file's path and its rewrites; also with "argument" and the rewrites of
# the command line's arguments, numbered from 1.
OBSERVERS: list[Callable[[str, list[Rewrite]], None]] = []


class RewritingLoader(SourceFileLoader):
    """Loads a module from its source, rewritten. stage: changes the tree further, uncached."""

    stage: Stage | None = None

    def get_code(self, fullname: str) -> CodeType:
        """Returns the module's code, from narrowfloat's cache if it has an entry."""
        path = self.get_filename(fullname)
        source = self.get_data(path)
        entry = None if self.stage else _code_cache.load(source, path)
        if entry is None:
            entry = self._compile(source, path)
            if not self.stage:
                _code_cache.store(source, path, entry)
        code, self.rewrites = entry
        return code

    def _compile(self, source: bytes, path: str) -> _code_cache.Entry:
        tree = ast.parse(source, path)
        rewrites = rewrite(tree)
        if self.stage:
            self.stage(tree, source, path)
        return compile(tree, path, "exec", dont_inherit=True), rewrites

    def exec_module(self, module: ModuleType) -> None:
        """Runs the module's code."""
        around = AROUND.get(module.__name__)
        if around:
            around(module, lambda: self.run_in(module.__dict__))
        else:
            self.run_in(module.__dict__)

    def run_in(self, names: dict[str, Any]) -> None:
        """Runs the module's code with given globals."""
        code = self.get_code(self.name)
        prepare(names, self.path, self.rewrites)
        exec(code, names)


def prepare(names: dict[str, Any], path: str, rewrites: list[Rewrite]) -> None:
    """Adds the globals that rewritten code reads, and passes the rewrites to the observers."""
    for name, ours in RUNTIMES.items():
        if any(name in made.after for made in rewrites):
            names[name] = importlib.import_module(ours)
    for observer in OBSERVERS:
        observer(path, rewrites)


def supplied_by(name: str) -> str | None:
    """Returns the name of narrowfloat's module that replaces a module, or None."""
    return SUPPLIED.get(name) or SUPPLIED.get(name.rpartition(".")[0] + ".")


def rewrite_arguments(arguments: list[str]) -> list[str]:
    """Returns a program's arguments, with devices and backends replaced as in its strings.

    Programs compare both. Passes the rewrites to the observers.
    """
    rewritten = list(map(_rewrite_argument, arguments))
    pairs = enumerate(zip(arguments, rewritten, strict=True), start=1)
    made = [Rewrite(index, before, after) for index, (before, after) in pairs if before != after]
    for observer in OBSERVERS:
        observer("argument", made)
    return rewritten


def _rewrite_argument(text: str) -> str:
    name, equals, value = text.rpartition("=")
    statement = ast.Expr(ast.Constant(value, lineno=1, col_offset=0))
    rewrite(ast.Module([statement], []))
    return f"{name}{equals}{ast.literal_eval(statement.value)}"


class _SupplyingLoader(Loader):
    """Loads narrowfloat's module in place of another."""

    def __init__(self, ours: str) -> None:
        self.ours = ours

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns the module in sys.modules after this call.
        sys.modules[module.__name__] = importlib.import_module(self.ours)


def _loader_of_source(spec: ModuleSpec) -> RewritingLoader | None:
    """Returns the loader for a module that Python would load from its source."""
    loader = spec.loader
    if type(loader) is not SourceFileLoader:
        return None
    return RewritingLoader(loader.name, loader.path)


# Functions that return a rewriting loader for the specs that they support, None for others.
LOADERS: list[Callable[[ModuleSpec], RewritingLoader | None]] = [_loader_of_source]


def rewritten_if_chosen(spec: ModuleSpec | None) -> ModuleSpec | None:
    """Sets the rewriting loader in the spec of a chosen module; returns other specs unchanged."""
    if spec is not None and SETTINGS.chooses(spec):
        loaders = (make(spec) for make in LOADERS)
        spec.loader = next((loader for loader in loaders if loader), spec.loader)
    return spec


def _followed(spec: ModuleSpec, after: Callable[[ModuleType], None]) -> ModuleSpec:
    """Returns the spec; its loader calls `after` with the module after running its code."""
    loader: Any = spec.loader
    run = loader.exec_module

    def run_and_call(module: ModuleType) -> None:
        run(module)
        after(module)

    loader.exec_module = run_and_call
    return spec


class Finder(MetaPathFinder):
    """Finds chosen modules through the other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns the spec with narrowfloat's loader; None for other modules."""
        for gate in GATES:
            gate(name)
        ours = supplied_by(name)
        if ours:
            return spec_from_loader(name, _SupplyingLoader(ours))
        if name not in AFTER and not SETTINGS.may_choose(name):
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and name in AFTER:
            return _followed(spec, AFTER.pop(name))
        spec = rewritten_if_chosen(spec)
        return spec if spec is not None and isinstance(spec.loader, RewritingLoader) else None


FINDER = Finder()

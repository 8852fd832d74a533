# SPDX-License-Identifier: Apache-2.0
"""Imports of chosen packages: their own files, rewritten in memory before they are compiled.

Nothing on the disk changes, and other packages are imported as ever.
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

# The modules that rewritten code reaches by a global of its own: name of the global -> module.
RUNTIMES = {RUNTIME: "narrowfloat.te.runtime", JAX_RUNTIME: "narrowfloat.te.jax.runtime"}
Stage = Callable[[ast.Module, bytes, str], None]
# Modules that are supplied instead of being found: name -> name of ours. A name that ends with a
# dot stands for all modules below it that are not named themselves.
SUPPLIED: dict[str, str] = {}
# Called with the name of each module before it is looked for; may refuse it.
GATES: list[Callable[[str], None]] = []
# Functions that run around a module's own code: name -> function of the module and of running
# its code.
AROUND: dict[str, Callable[[ModuleType, Callable[[], None]], None]] = {}
# Functions that run after the import of a module that is not rewritten: name -> function of the
# module.
AFTER: dict[str, Callable[[ModuleType], None]] = {}
# Called with each rewritten file's path and what was replaced in it; with "argument" and the words
# of the command line, numbered from 1.
OBSERVERS: list[Callable[[str, list[Rewrite]], None]] = []


class RewritingLoader(SourceFileLoader):
    """Loads a module from its source, rewritten. stage: changes the tree further, uncached."""

    stage: Stage | None = None

    def get_code(self, fullname: str) -> CodeType:
        """Returns the module's code, from our cache if it is there."""
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
        """Runs the module's code in given globals."""
        code = self.get_code(self.name)
        prepare(names, self.path, self.rewrites)
        exec(code, names)


def prepare(names: dict[str, Any], path: str, rewrites: list[Rewrite]) -> None:
    """Adds what rewritten code reads to its globals, and shows the rewrites to the observers."""
    for name, ours in RUNTIMES.items():
        if any(name in made.after for made in rewrites):
            names[name] = importlib.import_module(ours)
    for observer in OBSERVERS:
        observer(path, rewrites)


def supplied_by(name: str) -> str | None:
    """Returns the name of our module for a supplied one; None for others."""
    return SUPPLIED.get(name) or SUPPLIED.get(name.rpartition(".")[0] + ".")


def rewrite_arguments(arguments: list[str]) -> list[str]:
    """Returns a program's arguments, devices and backends replaced as in its texts.

    Programs compare them with texts of their own. Shows the rewrites to the observers.
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
    """Puts a module of ours in the place of another."""

    def __init__(self, ours: str) -> None:
        self.ours = ours

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what sys.modules holds when this is done.
        sys.modules[module.__name__] = importlib.import_module(self.ours)


def _loader_of_source(spec: ModuleSpec) -> RewritingLoader | None:
    """Returns the loader for a module that Python would load from its source."""
    loader = spec.loader
    if type(loader) is not SourceFileLoader:
        return None
    return RewritingLoader(loader.name, loader.path)


# Each makes a rewriting loader for the specs that it knows, and returns None for others.
LOADERS: list[Callable[[ModuleSpec], RewritingLoader | None]] = [_loader_of_source]


def rewritten_if_chosen(spec: ModuleSpec | None) -> ModuleSpec | None:
    """Gives the spec of a chosen module the rewriting loader; returns others as they are."""
    if spec is not None and SETTINGS.chooses(spec):
        loaders = (make(spec) for make in LOADERS)
        spec.loader = next((loader for loader in loaders if loader), spec.loader)
    return spec


def _followed(spec: ModuleSpec, after: Callable[[ModuleType], None]) -> ModuleSpec:
    """Returns a spec whose loader calls a function of the module when its code has run."""
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
        """Returns the spec with our loader; None for modules that are none of ours."""
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

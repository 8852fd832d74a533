# SPDX-License-Identifier: Apache-2.0
"""Settings of the process: the GPU generation to emulate, and the modules to rewrite."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path

# Environment variables, which child processes inherit.
AS = "NF_TE_AS"
ALSO = "NF_TE_ALSO"
SCRIPT = "NF_TE_SCRIPT"  # the path of the script that _script.run() runs
BESIDE_GPU = "NF_TE_BESIDE_GPU"

# Hopper and Blackwell: the generations whose choices TransformerEngine's Python distinguishes.
GENERATIONS = {"9.0": (9, 0), "10.0": (10, 0)}
DEFAULT_GENERATION = "10.0"
# TransformerEngine, and the program that loads its debug features by path.
PACKAGES = ("transformer_engine", "nvdlfw_inspect")

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def package_names(text: str) -> list[str]:
    """Returns the names in `text`, which are separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


@dataclass
class Settings:
    """The choices of a process. They apply from the first import of transformer_engine on."""

    generation: tuple[int, int] = GENERATIONS[DEFAULT_GENERATION]
    packages: set[str] = field(default_factory=lambda: set(PACKAGES))
    # Modules in these folders are rewritten too, except installed packages.
    folders: set[Path] = field(default_factory=set)

    def choose_generation(self, text: str) -> None:
        """Sets the generation. Errors: ValueError unless it is 9.0 or 10.0."""
        if text not in GENERATIONS:
            allowed = " or ".join(GENERATIONS)
            raise ValueError(f"narrowfloat.te: the generation must be {allowed}, got {text!r}")
        self.generation = GENERATIONS[text]
        os.environ[AS] = text

    def add_packages(self, text: str) -> None:
        """Adds packages, whose names are separated by commas."""
        self.packages.update(package_names(text))
        os.environ[ALSO] = ",".join(sorted(self.packages.difference(PACKAGES)))

    def may_choose(self, name: str) -> bool:
        """Returns whether an import of this name may need rewriting; chooses() decides."""
        root = name.partition(".")[0]
        listed = any(package.partition(".")[0] == root for package in self.packages)
        return listed or (bool(self.folders) and root != "narrowfloat")

    def chooses(self, spec: ModuleSpec) -> bool:
        """Returns whether a module is rewritten."""
        if any(spec.name == name or spec.name.startswith(f"{name}.") for name in self.packages):
            return True
        if not spec.origin or spec.name.partition(".")[0] == "narrowfloat":
            return False
        path = Path(spec.origin).resolve()
        if any(folder in path.parents for folder in self._package_folders()):
            return True  # a file of a package, loaded by its path
        chosen = self.folders.intersection(path.parents)
        return any(_INSTALLED.isdisjoint(path.relative_to(folder).parts) for folder in chosen)

    def _package_folders(self) -> Iterator[Path]:
        """Yields the folders of the packages that are imported already."""
        for name in self.packages:
            for folder in getattr(sys.modules.get(name), "__path__", ()):
                yield Path(folder).resolve()


SETTINGS = Settings()

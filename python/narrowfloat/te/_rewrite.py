# SPDX-License-Identifier: Apache-2.0
"""Rewrites the syntax tree of a module for CUDA, so that it runs on the CPU.

_rules.py defines the replacements, and where a string is kept. Line numbers stay unchanged.
"""

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from narrowfloat.te._rules import RULES, RULES_OF_TEXTS, Context, Rule, keys_of


class Rewrite(NamedTuple):
    """A replacement: the line of the source, the code before and after."""

    line: int
    before: str
    after: str


def rewrite(tree: ast.Module) -> list[Rewrite]:
    """Rewrites `tree` in place; returns the replacements, in the order of the source."""
    rewriter = _Rewriter(Context.of(tree))
    rewriter.visit(tree)
    ast.fix_missing_locations(tree)
    return sorted(rewriter.done)


class _Rewriter(ast.NodeTransformer):
    """Applies the rules to each node before its children: rules get the source's code."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.done: list[Rewrite] = []
        self.keys: dict[int, ast.expr] = {}  # by id(); a reference keeps each id unique

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        for rule in self._rules(node):
            replacement = rule(node, self.context)
            if replacement is not None:
                return self._replace(node, replacement)
        if isinstance(node, ast.JoinedStr):  # its constants are parts of a string
            inner: list[Any] = [
                value if isinstance(value, ast.Constant) else self.visit(value)
                for value in node.values
            ]
            node.values = inner
            return node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return node
        return self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        self.keys.update((id(key), key) for key in keys_of(node))
        return super().generic_visit(node)

    def _rules(self, node: ast.AST) -> Iterator[Rule]:
        """Yields the rules for a node; for keys, without the rules for strings."""
        for rule in RULES.get(type(node), ()):
            if rule not in RULES_OF_TEXTS or id(node) not in self.keys:
                yield rule

    def _replace(
        self, node: ast.AST, replacement: ast.AST | list[ast.stmt]
    ) -> ast.AST | list[ast.stmt]:
        before = ast.unparse(node)  # rules may reuse parts of the node
        nodes = replacement if isinstance(replacement, list) else [replacement]
        for new in nodes:
            ast.fix_missing_locations(ast.copy_location(new, node))
        after = "; ".join(ast.unparse(new) for new in nodes)
        self.done.append(Rewrite(cast(ast.stmt, node).lineno, before, after))
        for new in nodes:
            self.generic_visit(new)
        return replacement

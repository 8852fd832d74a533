# SPDX-License-Identifier: Apache-2.0
"""The rules that rewrite code for CUDA to run on the CPU, one function per rule.

A rule gets a node and the module's context. It returns the replacement, or None where it does not
apply. It does not change the node; a replacement may contain the node's children.
"""

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast

# The global variable through which rewritten code accesses narrowfloat.te.runtime. Python renames
# names that begin with two underscores within a class, unless they end with two.
RUNTIME = "__narrowfloat_te__"
# The variable for narrowfloat.te.jax.runtime; separate, since either framework may be absent.
JAX_RUNTIME = "__narrowfloat_te_jax__"

_CUDA_DEVICE = re.compile(r"cuda(:\d+)?")
_CUDA_TEMPLATE = re.compile(r"cuda:(%[ds]|\{\w*\})?")
# The names that PyTorch's Tensor.type() returns for tensors on a GPU: "torch.cuda.FloatTensor".
_CUDA_TENSOR_TYPE = re.compile(r"torch\.cuda\.(sparse\.)?\w+Tensor")
_NCCL = re.compile(r"(cpu:gloo,)?(cuda:)?nccl")
# Arguments that place a process on a GPU, by PyTorch's function. gloo and modules on the CPU accept
# none.
PLACING_ARGUMENTS = {
    "barrier": {"device_ids"},
    "init_process_group": {"device_id"},
    "DistributedDataParallel.__init__": {"device_ids", "output_device"},
}
_GPU_ARGUMENTS = {"pin_memory"}.union(*PLACING_ARGUMENTS.values())
# torch.NAME means CUDA when called with this number of arguments; one more names the device.
_AUTOCAST_OF_CUDA = {"is_autocast_enabled": 0, "set_autocast_enabled": 1}
# Paths below torch of functions that depend on CUDA's autocast dtype -> runtime function.
_AUTOCAST_DTYPES = {
    ("autocast",): "autocast",
    ("amp", "autocast"): "autocast",
    ("get_autocast_dtype",): "get_autocast_dtype",
    ("set_autocast_dtype",): "set_autocast_dtype",
}
_AUTOCAST_DTYPES_OF_CUDA = {
    "get_autocast_gpu_dtype": "get_autocast_dtype",
    "set_autocast_gpu_dtype": "set_autocast_dtype",
}
_METHODS = {
    "cuda": "move",
    "pin_memory": "pin_memory",
    "record_stream": "record_stream",
}
# Programs register classes by name, so that the string that name() returns is a key.
_RETURNS_A_KEY = "name"
# Methods that take a key first; "contains" is the runtime function for `key in mapping`.
_TAKE_A_KEY = ("contains", "get", "pop", "setdefault")
_DEVICE_KEYWORDS = ("device", "device_type", "map_location")
_BATCHED_PRODUCTS = ("baddbmm", "bmm")
_JAX_FUNCTIONS = {
    "reduce_precision": "jax.lax.reduce_precision",
    "scaled_matmul": "jax.nn.scaled_matmul",
}
_OTHER_FRAMEWORKS = ("flax", "jax", "triton")
_XLA_PLATFORM = re.compile("CUDA")
_SPEC_OF_FILE = "importlib.util.spec_from_file_location"


class Context(NamedTuple):
    """Describes the imports of a module.

    torch_names maps each name to its path below torch, () for torch itself. top_imports are the
    places of imports outside of functions and classes. uses_torch is False for modules of JAX or
    Triton. own_is_cuda maps places of `.is_cuda` in methods is_cuda to the name of their `self`.
    """

    torch_names: dict[str, tuple[str, ...]]
    top_imports: frozenset[tuple[int, int]]
    uses_torch: bool
    own_is_cuda: dict[tuple[int, int], str]

    @classmethod
    def of(cls, tree: ast.Module) -> "Context":
        """Returns the context of a module."""
        names: dict[str, tuple[str, ...]] = {"torch": ()}
        roots = set()
        for path, bound in _imports(tree):
            root, *rest = path
            roots.add(root)
            if root == "torch" and bound:
                names[bound] = tuple(rest)
        uses_torch = "torch" in roots or roots.isdisjoint(_OTHER_FRAMEWORKS)
        imports = frozenset(_places_of_top_imports(tree))
        return cls(names, imports, uses_torch, dict(_places_of_own_is_cuda(tree)))

    def is_torch(self, node: ast.AST, *path: str) -> bool:
        """Returns whether an expression is torch.PATH."""
        rest: list[str] = []
        while isinstance(node, ast.Attribute):
            rest.insert(0, node.attr)
            node = node.value
        start = self.torch_names.get(node.id) if isinstance(node, ast.Name) else None
        return start is not None and (*start, *rest) == path


def _imports(tree: ast.Module) -> Iterator[tuple[list[str], str | None]]:
    """Yields the path of each imported name, and the variable that it is bound to, or None."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split("."), alias.asname
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield [*node.module.split("."), alias.name], alias.asname or alias.name


def keys_of(node: ast.AST) -> Iterator[ast.expr]:
    """Yields the children of a node that are keys. Strings in keys need not be devices."""
    match node:
        case ast.Dict():
            yield from (key for key in node.keys if key is not None)
        case ast.MatchMapping():
            yield from node.keys
        case ast.Subscript():
            yield node.slice
        case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in _TAKE_A_KEY:
            yield first
        case ast.FunctionDef(name=name) if name == _RETURNS_A_KEY:
            for each in ast.walk(node):
                if isinstance(each, ast.Return) and each.value is not None:
                    yield each.value


def _places_of_own_is_cuda(tree: ast.Module) -> Iterator[tuple[tuple[int, int], str]]:
    """Yields line and column of `.is_cuda` in methods is_cuda, and their first parameter's name."""
    for owner in ast.walk(tree):
        for method in owner.body if isinstance(owner, ast.ClassDef) else ():
            match method:
                case ast.FunctionDef(name="is_cuda", args=ast.arguments(args=[first, *_])):
                    for node in ast.walk(method):
                        if isinstance(node, ast.Attribute) and node.attr == "is_cuda":
                            yield (node.lineno, node.col_offset), first.arg


def _places_of_top_imports(node: ast.AST) -> Iterator[tuple[int, int]]:
    """Yields line and column of `from` imports that run when the module is imported."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            yield child.lineno, child.col_offset
        elif isinstance(child, ast.stmt) and not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            yield from _places_of_top_imports(child)


def _runtime(*path: str, ctx: ast.expr_context | None = None) -> ast.expr:
    """Returns the expression for narrowfloat.te.runtime.PATH."""
    node: ast.Name | ast.Attribute = ast.Name(RUNTIME, ast.Load())
    for name in path:
        node = ast.Attribute(node, name, ast.Load())
    if ctx is not None:
        node.ctx = ctx
    return node


def _matches(pattern: re.Pattern[str], node: ast.AST) -> bool:
    """Returns whether an expression is a string that matches the whole pattern."""
    text = node.value if isinstance(node, ast.Constant) else None
    return isinstance(text, str) and pattern.fullmatch(text) is not None


def device_text(node: ast.Constant, context: Context) -> ast.AST | None:
    """Replaces "cuda" and "cuda:0" by "cpu"."""
    return ast.Constant("cpu") if _matches(_CUDA_DEVICE, node) else None


def tensor_type_text(node: ast.Constant, context: Context) -> ast.AST | None:
    """Replaces "torch.cuda.FloatTensor", which x.type() returns, by "torch.FloatTensor"."""
    if not _matches(_CUDA_TENSOR_TYPE, node):
        return None
    return ast.Constant(cast(str, node.value).replace(".cuda", "", 1))


def backend_text(node: ast.Constant, context: Context) -> ast.AST | None:
    """Replaces "nccl" by "gloo", the backend for tensors on the CPU."""
    return ast.Constant("gloo") if _matches(_NCCL, node) else None


def formatted_device(node: ast.JoinedStr, context: Context) -> ast.AST | None:
    """Replaces f"cuda:{index}" by "cpu"."""
    match node.values:
        case [ast.Constant("cuda:"), ast.FormattedValue()]:
            return ast.Constant("cpu")
    return None


def computed_device(node: ast.BinOp, context: Context) -> ast.AST | None:
    """Replaces "cuda:" + text and "cuda:%d" % index by "cpu"."""
    operator = isinstance(node.op, ast.Add | ast.Mod)
    return ast.Constant("cpu") if operator and _matches(_CUDA_TEMPLATE, node.left) else None


def _owner(node: ast.Call, name: str) -> ast.expr | None:
    """Returns the object in a call of a method with this name; None for other calls."""
    named = isinstance(node.func, ast.Attribute) and node.func.attr == name
    return cast(ast.Attribute, node.func).value if named else None


def filled_device(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces "cuda:{}".format(index) by "cpu"."""
    owner = _owner(node, "format")
    if owner is not None and _matches(_CUDA_TEMPLATE, owner):
        return ast.Constant("cpu")
    return None


def device_object(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces torch.device(...) by a function that returns the CPU for an index or CUDA's name.

    The type and the index may be unknown before run time.
    """
    if context.is_torch(node.func, "device"):
        return ast.Call(_runtime("device"), node.args, node.keywords)
    return None


def tensor_method(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces x.cuda(...), x.pin_memory(...) and x.record_stream(...) by runtime functions.

    These keep tensors on the CPU, and call the method of other objects.
    """
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    owner = _owner(node, name)
    if name not in _METHODS or owner is None or context.is_torch(owner):
        return None
    return ast.Call(_runtime(_METHODS[name]), [owner, *node.args], node.keywords)


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _may_be_device(node: ast.expr, context: Context) -> bool:
    """Returns False for expressions that cannot be devices, or that other rules replace."""
    if isinstance(node, ast.Constant):
        return _is_number(node)
    if isinstance(node, ast.Call) and context.is_torch(node.func, "device"):
        return False
    name = ast.unparse(node)
    is_dtype = name.endswith("dtype") or context.is_torch(node, name.rpartition(".")[2])
    return not is_dtype and not isinstance(node, ast.Starred)


def move_to(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces x.to(y) by a function that checks whether y names a CUDA device."""
    owner = _owner(node, "to")
    if owner is None or not context.uses_torch or not node.args:
        return None
    if not _may_be_device(node.args[0], context):
        return None
    return ast.Call(_runtime("to"), [owner, *node.args], node.keywords)


def device_argument(node: ast.keyword, context: Context) -> ast.AST | None:
    """Replaces device=y by device=place(y), which checks whether y names a CUDA device."""
    if node.arg not in _DEVICE_KEYWORDS or not context.uses_torch:
        return None
    if not _may_be_device(node.value, context):
        return None
    return ast.keyword(node.arg, ast.Call(_runtime("place"), [node.value], []))


def device_within(node: ast.Compare, context: Context) -> ast.AST | None:
    """Replaces "cuda" in x by a function that searches "cpu", unless x is a mapping."""
    (operator, *more), (container, *_) = node.ops, node.comparators
    if more or not isinstance(operator, ast.In | ast.NotIn) or not context.uses_torch:
        return None
    if not _matches(_CUDA_DEVICE, node.left):
        return None
    found = ast.Call(_runtime("contains"), [node.left, container], [])
    return ast.UnaryOp(ast.Not(), found) if isinstance(operator, ast.NotIn) else found


def autocast_of_cpu(node: ast.Call, context: Context) -> ast.AST | None:
    """Adds the argument "cpu" to PyTorch's autocast queries, which otherwise mean CUDA."""
    for name, count in _AUTOCAST_OF_CUDA.items():
        if context.is_torch(node.func, name) and len(node.args) + len(node.keywords) == count:
            return ast.Call(node.func, [ast.Constant("cpu"), *node.args], node.keywords)
    return None


def autocast_dtype(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces CUDA's autocast by a function with CUDA's default dtype, float16."""
    for name, ours in _AUTOCAST_DTYPES_OF_CUDA.items():
        if context.is_torch(node.func, name):
            return ast.Call(_runtime(ours), [ast.Constant("cpu"), *node.args], node.keywords)
    named = [keyword.value for keyword in node.keywords if keyword.arg == "device_type"]
    device = next(iter([*node.args, *named]), None)
    if isinstance(device, ast.Constant) and not _matches(_CUDA_DEVICE, device):
        return None
    for path, ours in _AUTOCAST_DTYPES.items():
        if context.is_torch(node.func, *path):
            return ast.Call(_runtime(ours), node.args, node.keywords)
    return None


def forked_generator(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces torch.random.fork_rng(...) by a function that forks the CPU's generator."""
    if context.is_torch(node.func, "random", "fork_rng"):
        return ast.Call(_runtime("fork_rng"), node.args, node.keywords)
    return None


def gpu_arguments(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces f(pin_memory=y), and other GPU arguments, by a call that may drop them.

    Before run time it is unknown whether f belongs to PyTorch, and which arguments `**options`
    contains.
    """
    name = ast.unparse(node.func).rpartition(".")[2]
    names = _GPU_ARGUMENTS | ({None} if context.is_torch(node.func, name) else set())
    for keyword in node.keywords:
        is_off = isinstance(keyword.value, ast.Constant) and not keyword.value.value
        if keyword.arg in names and not is_off:
            return ast.Call(_runtime("call"), [node.func, *node.args], node.keywords)
    return None


def batched_product(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces torch.bmm(...) and torch.baddbmm(...) by functions that are fast in every dtype."""
    for name in _BATCHED_PRODUCTS:
        if context.is_torch(node.func, name):
            return ast.Call(_runtime(name), node.args, node.keywords)
    return None


def file_loader(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces importlib's loading of a module by path, so that the module is rewritten too."""
    if isinstance(node.func, ast.Attribute) and ast.unparse(node.func) == _SPEC_OF_FILE:
        return ast.Call(_runtime("spec_from_file_location"), node.args, node.keywords)
    return None


def cuda_module(node: ast.Attribute, context: Context) -> ast.AST | None:
    """Replaces torch.cuda by narrowfloat.te.cuda."""
    return _runtime("cuda", ctx=node.ctx) if context.is_torch(node, "cuda") else None


def device_module(node: ast.Call, context: Context) -> ast.AST | None:
    """Replaces getattr(torch, "cuda") and torch.get_device_module(device).

    The latter's device may be unknown before run time.
    """
    match node:
        case ast.Call(func=ast.Name("getattr"), args=[owner, ast.Constant("cuda"), *_]):
            return _runtime("cuda") if context.is_torch(owner) else None
    if context.is_torch(node.func, "get_device_module"):
        return ast.Call(_runtime("get_device_module"), node.args, node.keywords)
    return None


def cuda_version(node: ast.Attribute, context: Context) -> ast.AST | None:
    """Replaces torch.version.cuda by narrowfloat.te.cuda.version."""
    if context.is_torch(node, "version", "cuda"):
        return _runtime("cuda", "version", ctx=node.ctx)
    return None


def cuda_tensor(node: ast.Attribute, context: Context) -> ast.AST | None:
    """Replaces x.is_cuda by a function that returns True for tensors on the CPU.

    In a class's own is_cuda the result depends on the class, as in is_part_on_gpu().
    """
    if node.attr != "is_cuda" or not isinstance(node.ctx, ast.Load):
        return None
    owner = context.own_is_cuda.get((node.lineno, node.col_offset))
    if owner is None:
        return ast.Call(_runtime("is_on_gpu"), [node.value], [])
    return ast.Call(_runtime("is_part_on_gpu"), [node.value, ast.Name(owner, ast.Load())], [])


def compiled_function(node: ast.FunctionDef, context: Context) -> ast.AST | None:
    """Replaces the decorator torch.compile by narrowfloat.te.runtime.compile."""
    ours = [context.is_torch(decorator, "compile") for decorator in node.decorator_list]
    if not any(ours):
        return None
    decorators = [
        _runtime("compile") if mine else decorator
        for mine, decorator in zip(ours, node.decorator_list, strict=True)
    ]
    return ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": decorators})


def jax_function(node: ast.Attribute, context: Context) -> ast.AST | None:
    """Replaces JAX's functions without a working lowering for CPUs."""
    if node.attr in _JAX_FUNCTIONS and ast.unparse(node) == _JAX_FUNCTIONS[node.attr]:
        return ast.Attribute(ast.Name(JAX_RUNTIME, ast.Load()), node.attr, node.ctx)
    return None


def jax_platform(node: ast.keyword, context: Context) -> ast.AST | None:
    """Replaces platform="CUDA", where JAX registers a handler, by "cpu"."""
    if node.arg == "platform" and _matches(_XLA_PLATFORM, node.value):
        return ast.keyword(node.arg, ast.Constant("cpu"))
    return None


def coalesced_collectives(node: ast.Attribute, context: Context) -> ast.AST | None:
    """Replaces torch.distributed's manager of batched collectives, which fails with gloo."""
    if node.attr == "_coalescing_manager":
        return _runtime("coalescing_manager", ctx=node.ctx)
    return None


def import_from_cuda(node: ast.ImportFrom, context: Context) -> list[ast.stmt] | None:
    """Replaces `from torch.cuda import NAME` by an assignment from narrowfloat.te.cuda."""
    path = (node.module or "").split(".")
    named = all(alias.name != "*" for alias in node.names)
    if node.level or path[:2] != ["torch", "cuda"] or not named:
        return None
    return [
        ast.Assign(
            [ast.Name(alias.asname or alias.name, ast.Store())], _runtime(*path[1:], alias.name)
        )
        for alias in node.names
    ]


def _import_without(node: ast.ImportFrom, name: str, ours: str) -> list[ast.stmt] | None:
    """Returns the import without `name`, and an assignment of `ours` to it; None without it."""
    found = [alias for alias in node.names if alias.name == name]
    others = [alias for alias in node.names if alias.name != name]
    kept: list[ast.stmt] = [ast.ImportFrom(node.module, others, 0)] if others else []
    made: list[ast.stmt] = [
        ast.Assign([ast.Name(alias.asname or name, ast.Store())], _runtime(ours)) for alias in found
    ]
    return kept + made if found else None


def import_of_cuda(node: ast.ImportFrom, context: Context) -> list[ast.stmt] | None:
    """Replaces `from torch import cuda` by an assignment of narrowfloat.te.cuda."""
    if node.level or node.module != "torch":
        return None
    return _import_without(node, "cuda", "cuda")


def import_of_coalescing(node: ast.ImportFrom, context: Context) -> list[ast.stmt] | None:
    """Replaces `from torch.distributed import _coalescing_manager` by an assignment."""
    if node.level or not f"{node.module}.".startswith("torch.distributed."):
        return None
    return _import_without(node, "_coalescing_manager", "coalescing_manager")


def renamed_import_of_cuda(node: ast.Import, context: Context) -> list[ast.stmt] | None:
    """Replaces `import torch.cuda.PATH as NAME` by an assignment; without NAME it is kept."""
    found = [a for a in node.names if a.asname and f"{a.name}.".startswith("torch.cuda.")]
    if not found:
        return None
    others = [alias for alias in node.names if alias not in found]
    kept: list[ast.stmt] = [ast.Import(others)] if others else []
    return kept + [
        ast.Assign([ast.Name(a.asname or "", ast.Store())], _runtime(*a.name.split(".")[1:]))
        for a in found
    ]


def dynamo_module(node: ast.Attribute, context: Context) -> ast.AST | None:
    """Replaces torch._dynamo by narrowfloat.te.dynamo, which imports it only when necessary."""
    return _runtime("dynamo", ctx=node.ctx) if context.is_torch(node, "_dynamo") else None


def dynamo_mark(node: ast.Attribute, context: Context) -> ast.AST | None:
    """Replaces torch.compiler's decorator, which imports torch._dynamo."""
    if context.is_torch(node, "compiler", "assume_constant_result"):
        return _runtime("dynamo", "assume_constant_result")
    return None


def import_of_dynamo(node: ast.Import, context: Context) -> ast.AST | None:
    """Replaces `import torch._dynamo`, which binds `torch`, by `import torch`."""
    if [(alias.name, alias.asname) for alias in node.names] == [("torch._dynamo", None)]:
        return ast.Import([ast.alias("torch")])
    return None


def import_from_dynamo(node: ast.ImportFrom, context: Context) -> list[ast.stmt] | None:
    """Binds a module's top-level names of torch._dynamo when torch._dynamo is imported."""
    is_top = (node.lineno, node.col_offset) in context.top_imports
    if node.level or not is_top or not f"{node.module}.".startswith("torch._dynamo."):
        return None
    made: list[ast.stmt] = []
    for alias in node.names:
        name = alias.asname or alias.name
        names = ast.Call(ast.Name("globals", ast.Load()), [], [])
        texts = [ast.Constant(text) for text in (name, node.module, alias.name)]
        call = ast.Call(_runtime("dynamo", "bind"), [names, *texts], [])
        made.append(ast.Assign([ast.Name(name, ast.Store())], call))
    return made


Rule = Callable[[Any, Context], ast.AST | list[ast.stmt] | None]

RULES_OF_TEXTS = (
    device_text,
    backend_text,
    tensor_type_text,
    formatted_device,
    computed_device,
    filled_device,
)

RULES: dict[type[ast.AST], tuple[Rule, ...]] = {
    ast.Constant: (device_text, backend_text, tensor_type_text),
    ast.JoinedStr: (formatted_device,),
    ast.BinOp: (computed_device,),
    ast.Compare: (device_within,),
    ast.Call: (
        filled_device,
        device_object,
        tensor_method,
        move_to,
        autocast_of_cpu,
        autocast_dtype,
        forked_generator,
        batched_product,
        file_loader,
        device_module,
        gpu_arguments,
    ),
    ast.keyword: (device_argument, jax_platform),
    ast.Attribute: (
        cuda_module,
        cuda_version,
        cuda_tensor,
        coalesced_collectives,
        dynamo_module,
        dynamo_mark,
        jax_function,
    ),
    ast.FunctionDef: (compiled_function,),
    ast.ImportFrom: (import_from_cuda, import_of_cuda, import_of_coalescing, import_from_dynamo),
    ast.Import: (renamed_import_of_cuda, import_of_dynamo),
}

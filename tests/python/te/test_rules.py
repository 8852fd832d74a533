# SPDX-License-Identifier: Apache-2.0
"""Tests each rule of rewriting on the source code that it is for."""

import ast

import pytest
from narrowfloat.te import _rules
from narrowfloat.te._rewrite import rewrite

CHANGED = {
    _rules.device_text: [
        ("x.to('cuda')", "x.to('cpu')"),
        ("device = 'cuda:3'", "device = 'cpu'"),
    ],
    _rules.backend_text: [
        ("start('nccl')", "start('gloo')"),
        ("start('cpu:gloo,cuda:nccl')", "start('gloo')"),
    ],
    _rules.tensor_type_text: [
        ("x.type() == 'torch.cuda.FloatTensor'", "x.type() == 'torch.FloatTensor'"),
        ("t = 'torch.cuda.sparse.HalfTensor'", "t = 'torch.sparse.HalfTensor'"),
    ],
    _rules.formatted_device: [("d = f'cuda:{rank}'", "d = 'cpu'")],
    _rules.computed_device: [
        ("d = 'cuda:' + str(rank)", "d = 'cpu'"),
        ("d = 'cuda:%d' % rank", "d = 'cpu'"),
    ],
    _rules.filled_device: [("d = 'cuda:{}'.format(rank)", "d = 'cpu'")],
    _rules.device_object: [
        ("torch.device('cuda', rank)", "__narrowfloat_te__.device('cpu', rank)"),
        ("torch.device(name)", "__narrowfloat_te__.device(name)"),
    ],
    _rules.tensor_method: [
        ("x.cuda()", "__narrowfloat_te__.move(x)"),
        ("x.y(1).cuda(rank, non_blocking=True)",)
        + ("__narrowfloat_te__.move(x.y(1), rank, non_blocking=True)",),
        ("y = x.pin_memory()", "y = __narrowfloat_te__.pin_memory(x)"),
        ("x.record_stream(s)", "__narrowfloat_te__.record_stream(x, s)"),
    ],
    _rules.autocast_of_cpu: [
        ("torch.is_autocast_enabled()", "torch.is_autocast_enabled('cpu')"),
        ("torch.set_autocast_enabled(on)", "torch.set_autocast_enabled('cpu', on)"),
    ],
    _rules.autocast_dtype: [
        ("torch.autocast('cuda')", "__narrowfloat_te__.autocast('cpu')"),
        ("torch.amp.autocast(t)", "__narrowfloat_te__.autocast(t)"),
        ("torch.autocast(device_type='cuda')", "__narrowfloat_te__.autocast(device_type='cpu')"),
        (
            "from torch import autocast as a\na('cuda:0', dtype=d)",
            "from torch import autocast as a\n__narrowfloat_te__.autocast('cpu', dtype=d)",
        ),
        (
            "import torch.amp as amp\namp.autocast('cuda')",
            "import torch.amp as amp\n__narrowfloat_te__.autocast('cpu')",
        ),
        ("torch.get_autocast_dtype('cuda')", "__narrowfloat_te__.get_autocast_dtype('cpu')"),
        ("torch.set_autocast_dtype('cuda', t)", "__narrowfloat_te__.set_autocast_dtype('cpu', t)"),
        ("torch.get_autocast_gpu_dtype()", "__narrowfloat_te__.get_autocast_dtype('cpu')"),
        ("torch.set_autocast_gpu_dtype(t)", "__narrowfloat_te__.set_autocast_dtype('cpu', t)"),
    ],
    _rules.forked_generator: [
        ("torch.random.fork_rng(devices=[0])", "__narrowfloat_te__.fork_rng(devices=[0])"),
        (
            "from torch.random import fork_rng\nfork_rng()",
            "from torch.random import fork_rng\n__narrowfloat_te__.fork_rng()",
        ),
    ],
    _rules.move_to: [
        ("x.to(0, torch.half)", "__narrowfloat_te__.to(x, 0, torch.half)"),
        ("x.to(device, copy=True)", "__narrowfloat_te__.to(x, device, copy=True)"),
    ],
    _rules.device_argument: [
        (
            "torch.zeros(3, device=1)",
            "torch.zeros(3, device=__narrowfloat_te__.place(1))",
        ),
        (
            "torch.load(f, map_location=names[0])",
            "torch.load(f, map_location=__narrowfloat_te__.place(names[0]))",
        ),
        ("Mesh(device_type=t)", "Mesh(device_type=__narrowfloat_te__.place(t))"),
    ],
    _rules.device_within: [
        ("'cuda' in name", "__narrowfloat_te__.contains('cuda', name)"),
        ("'cuda:0' not in names", "not __narrowfloat_te__.contains('cuda:0', names)"),
    ],
    _rules.gpu_arguments: [
        ("f(1, pin_memory=True)", "__narrowfloat_te__.call(f, 1, pin_memory=True)"),
        ("f(pin_memory=wanted)", "__narrowfloat_te__.call(f, pin_memory=wanted)"),
        ("torch.empty(2, **options)", "__narrowfloat_te__.call(torch.empty, 2, **options)"),
        ("dist.barrier(device_ids=[0])",)
        + ("__narrowfloat_te__.call(dist.barrier, device_ids=[0])",),
        ("DDP(m, output_device=rank)", "__narrowfloat_te__.call(DDP, m, output_device=rank)"),
        ("start('nccl', device_id=d)", "__narrowfloat_te__.call(start, 'gloo', device_id=d)"),
    ],
    _rules.batched_product: [
        ("y = torch.bmm(a, b)", "y = __narrowfloat_te__.bmm(a, b)"),
        ("torch.baddbmm(c, a, b, beta=0)", "__narrowfloat_te__.baddbmm(c, a, b, beta=0)"),
    ],
    _rules.file_loader: [
        ("importlib.util.spec_from_file_location(name, path)",)
        + ("__narrowfloat_te__.spec_from_file_location(name, path)",),
    ],
    _rules.cuda_module: [
        ("torch.cuda.synchronize()", "__narrowfloat_te__.cuda.synchronize()"),
        (
            "import torch as t\nt.cuda.Stream()",
            "import torch as t\n__narrowfloat_te__.cuda.Stream()",
        ),
    ],
    _rules.device_module: [
        ("getattr(torch, 'cuda', None)", "__narrowfloat_te__.cuda"),
        ("torch.get_device_module('cuda')", "__narrowfloat_te__.get_device_module('cpu')"),
        ("torch.get_device_module(x.device)", "__narrowfloat_te__.get_device_module(x.device)"),
    ],
    _rules.jax_function: [
        ("jax.nn.scaled_matmul(a, b)", "__narrowfloat_te_jax__.scaled_matmul(a, b)"),
        ("jax.lax.reduce_precision(x, 4, 3)", "__narrowfloat_te_jax__.reduce_precision(x, 4, 3)"),
    ],
    _rules.jax_platform: [("register(n, f, platform='CUDA')", "register(n, f, platform='cpu')")],
    _rules.cuda_version: [("float(torch.version.cuda)", "float(__narrowfloat_te__.cuda.version)")],
    _rules.cuda_tensor: [
        ("x.data.is_cuda", "__narrowfloat_te__.is_on_gpu(x.data)"),
        ("def is_cuda(x):\n    return x.is_cuda",)
        + ("def is_cuda(x):\n    return __narrowfloat_te__.is_on_gpu(x)",),
        ("class A:\n\n    @property\n    def is_cuda(self):\n        return self.a.is_cuda",)
        + (
            "class A:\n\n    @property\n    def is_cuda(self):\n"
            "        return __narrowfloat_te__.is_part_on_gpu(self.a, self)",
        ),
    ],
    _rules.compiled_function: [
        (
            "@torch.compile\n@other\ndef f():\n    pass",
            "@__narrowfloat_te__.compile\n@other\ndef f():\n    pass",
        ),
    ],
    _rules.coalesced_collectives: [
        ("with torch.distributed._coalescing_manager(group=g):\n    pass",)
        + ("with __narrowfloat_te__.coalescing_manager(group=g):\n    pass",),
    ],
    _rules.import_from_cuda: [
        ("from torch.cuda import nvtx as n", "n = __narrowfloat_te__.cuda.nvtx"),
        ("from torch.cuda.amp import autocast, GradScaler",)
        + (
            "autocast = __narrowfloat_te__.cuda.amp.autocast\n"
            "GradScaler = __narrowfloat_te__.cuda.amp.GradScaler",
        ),
    ],
    _rules.import_of_cuda: [
        ("from torch import cuda, nn", "from torch import nn\ncuda = __narrowfloat_te__.cuda"),
    ],
    _rules.import_of_coalescing: [
        ("from torch.distributed import _coalescing_manager",)
        + ("_coalescing_manager = __narrowfloat_te__.coalescing_manager",),
        ("from torch.distributed.distributed_c10d import Work, _coalescing_manager as c",)
        + (
            "from torch.distributed.distributed_c10d import Work\n"
            "c = __narrowfloat_te__.coalescing_manager",
        ),
    ],
    _rules.renamed_import_of_cuda: [
        ("import torch.cuda.nvtx as n", "n = __narrowfloat_te__.cuda.nvtx"),
    ],
    _rules.dynamo_module: [
        ("@torch._dynamo.disable\ndef f():\n    pass",)
        + ("@__narrowfloat_te__.dynamo.disable\ndef f():\n    pass",),
    ],
    _rules.dynamo_mark: [
        ("torch.compiler.assume_constant_result(f)",)
        + ("__narrowfloat_te__.dynamo.assume_constant_result(f)",),
    ],
    _rules.import_of_dynamo: [("import torch._dynamo", "import torch")],
    _rules.import_from_dynamo: [
        ("from torch._dynamo.comptime import comptime as c",)
        + (
            "c = __narrowfloat_te__.dynamo.bind(globals(), 'c', 'torch._dynamo.comptime', "
            "'comptime')",
        ),
    ],
}

UNCHANGED = [
    "'cuda graphs are not supported'",
    "f'device cuda:{rank}'",
    "f'{backend}cuda'",
    "__all__ = ['cuda']",
    "def name():\n    if old:\n        return 'cuda'\n    return f'cuda:{rank}'",
    "'torch.cuda.FloatTensor is a type'",
    "types['torch.cuda.FloatTensor']",
    "from .distributed import _coalescing_manager",
    "import torch.cuda",
    "def f():\n    from torch._dynamo.comptime import comptime",
    "from torch.cuda import *",
    "torch.is_autocast_enabled('cuda_like')",
    "torch.set_autocast_enabled('cpu', True)",
    "f(pin_memory=False)",
    "f(pin_memory=None)",
    "f(**options)",
    "torch.empty(2)",
    "getattr(torch, 'float16')",
    "getattr(x, name)",
    "x.to(False)",
    "x.to()",
    "x.to(None)",
    "x.to(*args)",
    "x.to(torch.half)",
    "x.to(y.dtype)",
    "f(device=None)",
    "f(device=True)",
    "import jax\nx.to(y)\njax.device_put(z, device=d)\n'cpu' in d",
    "x.is_cuda = False",
    "torch.autocast('cpu')",
    "torch.autocast(device_type='cpu', enabled=True)",
    "torch.get_autocast_dtype('cpu')",
    "te.autocast(enabled=True)",
    "@torch.compile(backend='eager')\ndef f():\n    pass",
    "torch.compile(f)",
    "{'cuda': 1, 'cpu': 2}['cuda']",
    "tables['cuda:0'] = {f'cuda:{rank}': a, 'cuda:%d' % rank: b, 'nccl': c}",
    "del options['cuda']",
    "match options:\n    case {'cuda': v, f.key: 'x'}:\n        pass",
    "options.get('cuda', 0)",
    "options.pop('cuda:{}'.format(rank))",
    "dist.barrier(group=g)",
    "torch.backends.cuda.matmul.allow_tf32 = True",
    "other.device('x')",
    "products = {torch.bmm: 2}",
    "other.bmm(a, b)",
]


@pytest.mark.parametrize(
    ("rule", "source", "expected"),
    [(rule.__name__, *case) for rule, cases in CHANGED.items() for case in cases],
)
def test_a_rule_replaces_its_code(rule: str, source: str, expected: str) -> None:
    tree = ast.parse(source)
    made = rewrite(tree)
    assert ast.unparse(tree) == expected
    assert made


@pytest.mark.parametrize("source", UNCHANGED)
def test_other_code_stays(source: str) -> None:
    tree = ast.parse(source)
    assert rewrite(tree) == []
    assert ast.unparse(tree) == ast.unparse(ast.parse(source))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{'cuda:0': 'cuda:1'}", "{'cuda:0': 'cpu'}"),
        ("match x:\n    case {'cuda': 'nccl'}:\n        pass",)
        + ("match x:\n    case {'cuda': 'gloo'}:\n        pass",),
        ("f['a'].get('cuda', 'cuda')", "f['a'].get('cuda', 'cpu')"),
        ("def name():\n    return f('cuda')", "def name():\n    return f('cpu')"),
        (
            "{torch.device('cuda'): 1}[torch.device('cuda')]",
            "{__narrowfloat_te__.device('cpu'): 1}[__narrowfloat_te__.device('cpu')]",
        ),
    ],
)
def test_a_text_stays_where_it_is_a_key_alone(source: str, expected: str) -> None:
    tree = ast.parse(source)
    rewrite(tree)
    assert ast.unparse(tree) == expected


def test_every_rule_has_its_own_test() -> None:
    rules = {rule for rules in _rules.RULES.values() for rule in rules}
    assert rules == set(CHANGED)


def test_rewrites_name_line_and_code() -> None:
    tree = ast.parse("import torch\n\nx.cuda()\ny = torch.zeros(\n    1, device='cuda')\n")
    assert [tuple(made) for made in rewrite(tree)] == [
        (3, "x.cuda()", "__narrowfloat_te__.move(x)"),
        (5, "'cuda'", "'cpu'"),
    ]


def test_a_traceback_shows_the_line_of_the_source() -> None:
    tree = ast.parse("import torch\n\n\ntorch.cuda.no_such(\n    1,\n    device='cuda',\n)\n")
    rewrite(tree)
    lines = {node.lineno for node in ast.walk(tree) if hasattr(node, "lineno")}
    assert lines <= {1, 4, 5, 6}
    compile(tree, "source.py", "exec")

# SPDX-License-Identifier: Apache-2.0
"""Tests that missing functions of the native module raise errors with their names."""

import re
import subprocess
import sys
import types

import pytest
from narrowfloat.pytorch import tex
from narrowfloat.pytorch.tex import _absent


def test_refused_entry_can_be_imported_and_names_its_need_when_called() -> None:
    from narrowfloat.pytorch.tex import ep_dispatch

    with pytest.raises(
        NotImplementedError, match=r"^transformer_engine_torch\.ep_dispatch: needs "
    ):
        ep_dispatch(1, handle=2)


@pytest.mark.parametrize("name", sorted(_absent.NEEDS))
def test_every_refused_entry_names_itself_and_its_need(name: str) -> None:
    message = rf"^transformer_engine_torch\.{name}: needs {re.escape(_absent.NEEDS[name])}, "
    with pytest.raises(NotImplementedError, match=message):
        getattr(tex, name)()


def test_unknown_entry_raises_not_implemented_with_its_name() -> None:
    with pytest.raises(NotImplementedError, match=r"^transformer_engine_torch\.brand_new: "):
        tex.brand_new  # noqa: B018


def test_unknown_entry_is_absent_to_programs_that_ask() -> None:
    assert not hasattr(tex, "flash_attention")
    assert getattr(tex, "get_attention_backend", None) is None


def test_messages_name_the_release_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    host = types.ModuleType("transformer_engine")
    host.__version__ = "2.99.1"
    monkeypatch.setitem(sys.modules, "transformer_engine", host)
    with pytest.raises(NotImplementedError, match=r"TransformerEngine 2\.99\.1"):
        tex.fused_attn_fwd()


def test_private_names_are_plainly_absent() -> None:
    with pytest.raises(AttributeError) as caught:
        tex._no_such_name  # noqa: B018
    assert not isinstance(caught.value, NotImplementedError)


def test_star_import_brings_every_entry() -> None:
    code = (
        "from narrowfloat.pytorch.tex import *\n"
        "from narrowfloat.pytorch import tex\n"
        "assert all(globals()[name] is getattr(tex, name) for name in tex.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

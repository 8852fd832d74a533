# SPDX-License-Identifier: Apache-2.0
"""The main module of processes that a rewritten program starts: runs the program itself."""

from narrowfloat.te import _script

_script.run_again(globals())

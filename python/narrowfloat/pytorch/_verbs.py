# SPDX-License-Identifier: Apache-2.0
"""The native verbs on torch tensors, and the number of threads they run on.

A module of its own: the functions of operators outlive their module's names, this object must not.
"""

import torch

from narrowfloat import _core

verbs = _core.TorchTensors(torch)
threads = torch.get_num_threads

# SPDX-License-Identifier: Apache-2.0
"""The native verbs on torch tensors, and the number of their threads.

A module of its own, since functions of operators outlive names of modules and this must not.
"""

import torch

from narrowfloat import _core

verbs = _core.TorchTensors(torch)
threads = torch.get_num_threads

# SPDX-License-Identifier: Apache-2.0
"""What every framework's face shares; nothing here imports a framework."""

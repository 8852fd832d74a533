#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# docs.sh: builds the API reference of Python and C++ and the guides as static HTML in build/docs/html.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/say.sh"
cd "$(dirname "$0")/.."

python=.venv/bin/python
mkdir -p build/docs
"$python" -c 'import sphinx, furo, myst_parser, breathe' 2>/dev/null || {
  say "docs: installing scripts/requirements-docs.txt into .venv"
  "$python" -m pip install --quiet --disable-pip-version-check -r scripts/requirements-docs.txt
}
say "docs: reading the C++ headers (build/docs/doxygen.log)"
doxygen docs/reference/Doxyfile >build/docs/doxygen.log 2>&1 || { cat build/docs/doxygen.log >&2; exit 1; }
say "docs: writing build/docs/html (build/docs/sphinx.log)"
"$python" -m sphinx -q -W --keep-going -b html -c docs/reference -d build/docs/doctrees docs build/docs/html \
  >build/docs/sphinx.log 2>&1 || { cat build/docs/sphinx.log >&2; exit 1; }
say "docs: build/docs/html/reference/index.html"

"""Makes the package `release` importable: it is at the root, which is on no path, since the rooms' names are
others' too.
"""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location

from tests.support.places import ROOT

_FOLDER = ROOT / "release"
_spec = spec_from_file_location("release", _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)])
assert _spec is not None
assert _spec.loader is not None
sys.modules.setdefault("release", module_from_spec(_spec))

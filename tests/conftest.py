"""Set-up shared by all tests."""

import hashlib
import os
from pathlib import Path

# Numba's cache does not notice an edited callee in another module: one cache per state of the kernels.
_root = Path(__file__).parent.parent
_state = hashlib.sha1(b"".join(p.read_bytes() for p in sorted((_root / "src/treemax/kernels").glob("*.py"))))
os.environ.setdefault("NUMBA_CACHE_DIR", str(_root / ".numba_cache" / _state.hexdigest()[:12]))

"""The page that shows a cluster's groups: served by the controller at `/gangflow`, and by Ray's dashboard at the same path.

One file without anything from outside; `{{API}}` is replaced by where its server answers the REST contract.
"""

from __future__ import annotations

from importlib.resources import files

PAGE = files("gangflow.xce.rest").joinpath("page.html").read_text(encoding="utf-8")

"""`/gangflow` in the Ray dashboard: groups, members, states, reasons, and each group's trace as a timeline.

Ray discovers dashboard modules by importing what it finds and asking for the subclasses of its base class. `site/` holds a
`sitecustomize` that brings ours in, inside the dashboard's process only. This is not an official interface of Ray: where it
differs, the module stays out, and the same page is served by the controller at `/gangflow`.
"""

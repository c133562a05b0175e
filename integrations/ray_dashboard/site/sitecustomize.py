"""On the path of one Ray head: lets its dashboard find gangflow's page. Does nothing in any other process, and never raises."""

import sys


def _chain() -> None:
    """Run the `sitecustomize` that this one hides, if there is one."""
    import importlib.machinery
    import importlib.util
    from pathlib import Path

    here = Path(__file__).resolve().parent
    elsewhere = [entry for entry in sys.path if entry and Path(entry).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def _is_dashboard() -> bool:
    return any(argument.endswith("dashboard/dashboard.py") for argument in sys.orig_argv)


try:
    _chain()
except Exception as error:
    print(f"gangflow: the sitecustomize behind ours failed: {error!r}", file=sys.stderr)

if _is_dashboard():
    try:
        import gangflow.ray.dashboard  # noqa: F401 - importing it registers the module
    except Exception as error:
        print(f"gangflow: no page in this dashboard: {error!r}", file=sys.stderr)

"""The controller's shell: inputs in, one durable batch after the other, effects out. It decides nothing itself."""

from gangflow.xce.controller.options import Options
from gangflow.xce.controller.shell import Controller
from gangflow.xce.journal.store import Stamped

__all__ = ["Controller", "Options", "Stamped"]

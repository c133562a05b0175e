"""The generator: an embedded engine around the numpy policy. Run as `python -m gangflow.recipes.grpo.rollout`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gangflow.integrations.embedded.server import EmbeddedRollout, serve
from gangflow.recipes.grpo import exchange
from gangflow.recipes.grpo.policy import Policy


class Rollout(EmbeddedRollout[Policy]):
    """Samples answers. A sample depends on the weights, its prompt and its index alone, whoever makes it."""

    def load(self, path: str) -> Policy:
        return Policy.load(Path(path))

    def generate(self, policy: Policy, prompts: Sequence[Any], params: Mapping[str, Any]) -> Sequence[Any]:
        """One output (see `exchange`) for each prompt; the index is the last part of its sample id."""
        indices = [int(name.rpartition("/")[2]) for name in params["sample_ids"]]
        return exchange.answer(policy, prompts, indices)


if __name__ == "__main__":
    serve(Rollout())

"""A rank of a TRL trainer, for test_trl_actor.py: `torchrun trl_ranks.py MODEL FOLDER`. Only the first one asks rollouts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from gangflow.integrations.trl import Actor
from gangflow.testing import Ask, FakeContext


def digest(model: Any) -> str:
    found = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        found.update(name.encode() + value.detach().numpy().tobytes())
    return found.hexdigest()


def answer(ask: Ask) -> dict[str, Any]:
    """Says which prompt it was asked: its last letter, again and again."""
    index = int(ask.sample_id.rsplit("/", 1)[1])
    return {"token_ids": [ask.prompt["token_ids"][-1]] * (1 + index), "logprobs": [-4.0] * (1 + index)}


def main() -> None:
    model, folder, rank = sys.argv[1], Path(sys.argv[2]), int(os.environ["RANK"])
    seen: list[bool] = []

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        seen.extend(set(text) == {prompt[-1]} for prompt, text in zip(prompts, completions, strict=True))
        return [float(len(text)) * (ord(prompt[-1]) % 3) for prompt, text in zip(prompts, completions, strict=True)]

    with FakeContext(answer, claims=("ckpt", "model")) as context:
        shutil.copytree(model, context.claims["model"], dirs_exist_ok=True)
        actor = Actor(context)
        trainer = GRPOTrainer(
            model=context.claims["model"],
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": [f"say {letter}" for letter in "abcdefghijkl"]}),
            args=GRPOConfig(
                output_dir=context.claims["ckpt"] + "/trainer",
                max_steps=3,
                save_steps=3,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=4,
                learning_rate=1e-3,
                use_cpu=True,
                bf16=False,
                report_to=[],
                disable_tqdm=True,
                ddp_timeout=120,
            ),
            rollout_func=actor.rollout_func,
            callbacks=[actor.callback],
        )
        before = digest(trainer.model)
        trainer.train(resume_from_checkpoint=actor.resume())
        told = {
            "before": before,
            "policy": digest(trainer.accelerator.unwrap_model(trainer.model_wrapped)),
            "published": [head.weights.version for head in context.published],
            "saved": [checkpoint.step for checkpoint in context.saved],
            "committed": context.rollouts.counters.committed,
            "asked_alike": bool(seen) and all(seen),
        }
    (folder / f"rank-{rank}.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main()

"""The reference server: log-probabilities under a frozen policy. Run as `python -m gangflow.recipes.lm.reference`.

`POST /logprobs` {"tokens", "lengths", "starts", "temperature"} → {"logprobs", "policy"}: all sequences one after the other
(packed int32), how long each is, where its answer begins (≥ 1); back come the log-probabilities of the answers' tokens, one
after the other (packed float32), and the fingerprint of the weights: the actor can tell a reference that is not its own.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
from typing import Any

import torch

from gangflow.member.identity import Identity
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import wire
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.claim import MODEL
from gangflow.recipes.services.packing import pack_floats
from gangflow.recipes.services.serving import Answer, check_asker, serve


def judge(model: Any, policy: str, *, micro_batch: int) -> Answer:
    """The answer to /logprobs by that model, whose fingerprint is `policy`; `micro_batch` sequences at a time."""
    alone = threading.Lock()
    device = next(model.parameters()).device
    vocabulary = int(model.config.vocab_size)

    def logprobs(asked: dict[str, Any]) -> dict[str, Any]:
        prompts, answers = wire.read(asked, vocabulary)
        temperature = float(asked["temperature"])
        if not temperature > 0:
            raise ValueError(f"temperature: above 0, not {temperature!r}")
        found: list[float] = []
        with alone, torch.no_grad():
            for low in range(0, len(prompts), micro_batch):
                check_asker()
                rows = pack(prompts[low : low + micro_batch], answers[low : low + micro_batch]).to(device)
                values = models.token_logprobs(model, rows.tokens, rows.attention, temperature=temperature)
                found += values[rows.answer].tolist()  # row by row, each from its answer's first token on
        return {"logprobs": pack_floats(found), "policy": policy}

    return logprobs


def load(folder: str, *, device: str, dtype: str) -> Any:
    """The frozen model, on the CPU or over all GPUs of this process (several: needs accelerate)."""
    if device != "gpu":
        return models.load(folder, dtype=dtype)
    if torch.cuda.device_count() <= 1:
        return models.load(folder, device="cuda", dtype=dtype)
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=models.DTYPES[dtype], device_map="auto", local_files_only=True
    ).eval()


def main() -> None:
    """Serve on the port that XCE gave: the configuration's `ref_model`, else the model of the claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="GRPO_CONFIG", help="environment variable with the recipe's configuration")
    config = json.loads(os.environ[parser.parse_args().config])
    folder = config.get("ref_model") or Identity.read(os.environ).claim(MODEL)
    model = load(folder, device=config["device"], dtype=config["dtype"])
    serve({"/logprobs": judge(model, models.fingerprint(folder), micro_batch=config["micro_batch"])})


if __name__ == "__main__":
    main()

"""The recipe's TRL actor: its arguments are TRL's, its prompts the recipe's tokens, its rewards the verifier's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import Trainer
from trl import GRPOConfig

from gangflow.errors import NoQuorum, Problem, SpecError
from gangflow.member.failures import PolicyMismatch
from gangflow.recipes.grpo.lm import trl_actor
from gangflow.recipes.grpo.lm.config import VARIABLE, LmConfig
from gangflow.recipes.grpo.lm.trl_actor import Recorder, Verifier, check_problems, dataset_of, text_of
from gangflow.recipes.grpo.lm.trl_settings import arguments, updates
from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import problems
from gangflow.recipes.lm.judging import Judges
from gangflow.recipes.lm.verifier import judge
from gangflow.recipes.services.rules import WRONG_POLICY
from gangflow.recipes.services.serving import JsonServer
from gangflow.testing import FakeContext
from tests.engines.test_lm_actor import Rollouts

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")
PROGRAM = Path(__file__).with_name("trl_ranks.py")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"schedule": "linear", "min_learning_rate": 1e-5, "warmup": 3},
        {"schedule": "cosine", "min_learning_rate": 1e-5, "epochs": 2, "minibatches": 2, "micro_batch": 16},
        {"checkpointing": True, "kl_weight": 0},
    ],
)
def test_trl_takes_the_arguments(settings: dict[str, Any], tmp_path: Path) -> None:
    config = LmConfig(trainer="trl", learning_rate=1e-3, steps=20, **settings)
    args = GRPOConfig(**arguments(config, str(tmp_path)))
    assert args.generation_batch_size == config.prompts * config.samples
    # Its schedule is the recipe's: up over the warm-up, and down to the minimum at the last step.
    trainer = Trainer(model=torch.nn.Linear(1, 1), args=args)
    trainer.create_optimizer_and_scheduler(num_training_steps=args.max_steps)
    rates = []
    for _ in range(args.max_steps):
        rates.append(trainer.lr_scheduler.get_last_lr()[0])
        trainer.optimizer.step()
        trainer.lr_scheduler.step()
    assert max(rates) == pytest.approx(1e-3)
    last = trainer.lr_scheduler.get_last_lr()[0]
    assert last == pytest.approx(1e-3 if config.schedule == "constant" else config.min_learning_rate)
    assert (rates[0] == 0) == bool(config.warmup)


def test_prompts_become_the_recipes_tokens(tiny_model: Path) -> None:
    tokenizer = models.tokenizer_of(str(tiny_model))
    trained, _ = problems.split(problems.load("spell_backward"))
    for row, problem in zip(dataset_of(trained[:20], tokenizer), trained[:20], strict=True):
        assert row["number"] == problem.number
        assert tokenizer(text=row["prompt"])["input_ids"] == models.prompt_tokens(tokenizer, problem)
    tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}a:"
    for row, problem in zip(dataset_of(trained[:3], tokenizer), trained[:3], strict=True):
        made = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=True, return_dict=False)
        assert list(made) == models.prompt_tokens(tokenizer, problem)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PolicyMismatch("another reference"), WRONG_POLICY),
        (problems.BadProblems("a line that is none"), WRONG_POLICY),
        (SpecError([Problem("prompts", "4", "at most 3")]), WRONG_POLICY),
        (NoQuorum("fewer than 1 rollouts"), 1),
    ],
)
def test_the_exit_code_says_whether_a_restart_can_help(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(_config: LmConfig, _context: object) -> None:
        raise error

    monkeypatch.setenv(VARIABLE, LmConfig(trainer="trl").for_programs())
    monkeypatch.setattr(trl_actor, "train", failing)
    monkeypatch.setattr(trl_actor.gangflow, "context", lambda: None)
    assert trl_actor.main() == code
    assert str(error).splitlines()[0] in capsys.readouterr().err


@pytest.fixture
def verifier() -> Iterator[Verifier]:
    with JsonServer("127.0.0.1", 0, {"/score": judge(problems.load("spell_backward"))}) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        judges = Judges(lambda member: [server.url], reference="", patience_s=10)
        yield Verifier(judges)
        judges.close()
        server.shutdown()
        thread.join()


def test_rewards_are_the_verifiers_and_none_for_what_was_skipped(verifier: Verifier) -> None:
    first, second = problems.load("spell_backward")[:2]
    logged: dict[str, float] = {}
    rewards = verifier(
        completions=[first.answer, "zz", second.answer, [{"role": "assistant", "content": first.answer}]],
        number=[first.number, first.number, second.number, first.number],
        skipped=[False, False, True, False],
        log_metric=logged.__setitem__,
    )
    assert rewards[0] == rewards[3] == problems.BEST_REWARD
    assert rewards[1] is not None
    assert rewards[1] < 1
    assert rewards[2] is None
    assert logged["exact"] == pytest.approx(2 / 3)
    assert text_of("x") == text_of([{"content": "x"}]) == "x"


def test_two_ranks_train_one_policy_from_one_group_of_rollouts(tiny_model: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(PROGRAM)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*words, str(tiny_model), str(tmp_path)], env=environment, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    first, second = (json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2))
    assert first["policy"] == second["policy"] != first["before"]
    assert first["published"] == [0, 1, 2]
    assert second["published"] == []
    assert (first["committed"], second["committed"]) == (3 * 16, 0)
    assert (first["saved"], second["saved"]) == ([2], [])
    # Each rank was given its own half of what was sampled.
    assert first["asked_alike"] is True


def test_what_cannot_be_trained_is_said_at_the_start(tiny_model: Path) -> None:
    tokenizer = models.tokenizer_of(str(tiny_model))
    trained, held_out = problems.split(problems.load("spell_backward"))
    check_problems(LmConfig(trainer="trl", prompts=3), trained[:3], held_out, tokenizer)
    with pytest.raises(SpecError, match=r"prompts: expected at most 3 with TRL, .* \(got 4\)"):
        check_problems(LmConfig(trainer="trl", prompts=4), trained[:3], held_out, tokenizer)
    with pytest.raises(problems.BadPrompt, match=r"7 tokens; expected 1 to `max_prompt_tokens`, 5"):
        check_problems(LmConfig(trainer="trl", prompts=3, max_prompt_tokens=5), trained, held_out, tokenizer)


def test_a_restart_keeps_the_first_accuracy_and_connections_end_with_the_run(
    tiny_model: Path, verifier: Verifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollouts, ended = Rollouts(), []
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    accuracies = iter([0.25, 0.5, 0.75])
    monkeypatch.setattr(trl_actor.measuring, "accuracy", lambda *_: next(accuracies))
    monkeypatch.setattr(trl_actor, "Judges", lambda *_, **__: SimpleNamespace(close=lambda: ended.append("closed")))
    monkeypatch.setattr(trl_actor, "Verifier", lambda _: verifier)
    config = LmConfig(
        trainer="trl", steps=2, prompts=2, samples=2, max_tokens=4, checkpoint_every=1, evaluate_every=1, evaluate_prompts=2
    )
    with FakeContext(rollouts, claims=("ckpt", "model")) as context:
        shutil.copytree(tiny_model, context.claims["model"], dirs_exist_ok=True)
        rollouts.context = context
        with monkeypatch.context() as dying:
            dying.setattr(Recorder, "on_step_begin", _dies_after(1, Recorder.on_step_begin))
            with pytest.raises(Killed):
                trl_actor.train(config, context)
        assert ended == ["closed"]
        second = context.restarted()
        try:
            result = trl_actor.train(config, second)
        finally:
            second.close()
    assert (result["resumed_at"], result["first_accuracy"], result["accuracy"]) == (1, 0.25, 0.75)
    assert ended == ["closed"] * 2


class Killed(BaseException):
    """Nothing catches it."""


def _dies_after(steps: int, begin: Any) -> Any:
    def begins(self: Recorder, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if state.global_step >= steps * updates(self._config):
            raise Killed
        begin(self, args, state, control, **rest)

    return begins

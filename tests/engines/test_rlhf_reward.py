"""The reward model: it learns what annotators prefer, is trained once, and is known by its fingerprint."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from gangflow.recipes.lm import model as models
from gangflow.recipes.lm import wire
from gangflow.recipes.lm.batch import pack
from gangflow.recipes.lm.ranks import Team
from gangflow.recipes.rlhf_ppo import reward
from gangflow.recipes.rlhf_ppo.config import Config
from gangflow.recipes.rlhf_ppo.judges import RlhfJudges, WrongReward
from gangflow.recipes.rlhf_ppo.preferences import RewardModel, TokenPair
from gangflow.recipes.rlhf_ppo.reward import Scorer, ensured, saved
from gangflow.recipes.rlhf_ppo.scalar import Scalar
from gangflow.recipes.rlhf_ppo.texts import Texts
from gangflow.recipes.services.asking import ServiceFailed
from gangflow.recipes.services.packing import floats
from tests.engines.rlhf_parts import make_model, same, service, settings

ALONE = Team()


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("rlhf") / "model")


@pytest.fixture
def texts(policy: Path) -> Texts:
    return Texts(models.tokenizer_of(policy))


def _pairs(count: int, seed: int) -> list[TokenPair]:
    """Whoever says 30 somewhere in his reply is preferred to who does not."""
    chance = torch.Generator().manual_seed(seed)
    pairs = []
    for _ in range(count):
        prompt, plain, other = torch.randint(10, 29, (3, 4), generator=chance).tolist()
        place = int(torch.randint(4, (1,), generator=chance))
        pairs.append(TokenPair(prompt, [*plain[:place], 30, *plain[place:], 1], [*other, 12, 1]))
    return pairs


def test_it_learns_a_preference_that_it_has_not_seen_on_those_pairs(policy: Path) -> None:
    model = RewardModel(Scalar.load(policy, fresh_head=0), settings(reward_epochs=6, reward_learning_rate=3e-3), ALONE)
    held_out = _pairs(100, seed=1)
    before = model.accuracy(held_out)
    losses = model.fit(_pairs(256, seed=0))
    assert len(losses) == 6 * 8
    assert losses[-1] < losses[0]
    assert before < 0.75
    assert model.accuracy(held_out) > 0.95


def test_scores_have_mean_0_and_variance_1_over_the_pairs_it_was_trained_on(policy: Path) -> None:
    pairs = _pairs(64, seed=0)
    model = RewardModel(Scalar.load(policy, fresh_head=0), settings(), ALONE)
    model.fit(pairs)
    prompts = [pair.prompt for pair in pairs]
    scores = model.scores(pack(prompts * 2, [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]))
    assert float(scores.mean()) == pytest.approx(0.0, abs=1e-4)
    assert float(scores.std(correction=0)) == pytest.approx(1.0, abs=1e-4)


def test_a_score_does_not_depend_on_who_else_is_scored(policy: Path) -> None:
    model = RewardModel(Scalar.load(policy, fresh_head=0), settings(micro_batch=2), ALONE)
    prompts, replies = [[5, 6], [7], [8, 9, 10]], [[11, 1], [12, 13, 14, 15, 1], [16, 1]]
    together = model.outputs(pack(prompts, replies))
    alone = torch.cat([model.outputs(pack([prompt], [reply])) for prompt, reply in zip(prompts, replies, strict=True)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-5)


def test_it_is_trained_once_and_a_restart_serves_the_same(policy: Path, texts: Texts, tmp_path: Path) -> None:
    config, folder = settings(), tmp_path / "reward"
    first = ensured(folder, config, 0, ALONE, str(policy), texts)
    assert first.report["pairs"] == 64
    assert 0 <= first.report["accuracy_before"] <= 1
    assert 0 <= first.report["accuracy"] <= 1
    assert len(first.report["losses"]) == 2
    written = (folder / "report.json").stat().st_mtime_ns
    again = ensured(folder, config, 0, ALONE, str(policy), texts)
    assert again == first
    assert (folder / "report.json").stat().st_mtime_ns == written
    # Made a second time from the beginning, it is the same to the bit.
    other = ensured(tmp_path / "other", config, 0, ALONE, str(policy), texts)
    assert other.fingerprint == first.fingerprint
    assert other.scale == first.scale


def test_a_damaged_one_is_made_again(policy: Path, texts: Texts, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, folder = settings(), tmp_path / "reward"
    first = ensured(folder, config, 0, ALONE, str(policy), texts)
    weights = next(folder.glob("model/*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-4] + b"1234")
    assert saved(folder) is None
    assert "not what was saved" in capsys.readouterr().err
    assert ensured(folder, config, 0, ALONE, str(policy), texts).fingerprint == first.fingerprint


@pytest.mark.parametrize("left", ["nothing", "a model without a report", "half a report"])
def test_what_a_kill_leaves_behind_is_no_reward_model(policy: Path, texts: Texts, tmp_path: Path, left: str) -> None:
    folder = tmp_path / "reward"
    if left != "nothing":
        make_model(folder / "model")
    if left == "half a report":
        (folder / "report.json").write_text('{"folder": "model", "mo')
    assert saved(folder) is None
    assert ensured(folder, settings(), 0, ALONE, str(policy), texts).report["trained"]


def test_other_slots_wait_for_the_first_ones(policy: Path, texts: Texts, tmp_path: Path, monkeypatch: Any) -> None:
    folder, found = tmp_path / "reward", []
    looked = threading.Event()

    def look(folder: Path) -> Any:
        looked.set()
        return saved(folder)

    monkeypatch.setattr(reward, "LOOK_S", 0.02)
    monkeypatch.setattr(reward, "saved", look)
    other = threading.Thread(target=lambda: found.append(ensured(folder, settings(), 1, ALONE, str(policy), texts)))
    other.start()
    assert looked.wait(20)
    assert not folder.exists()
    first = ensured(folder, settings(), 0, ALONE, str(policy), texts)
    other.join(20)
    assert found == [first]


def test_a_given_one_is_measured_not_trained(policy: Path, texts: Texts, tmp_path: Path) -> None:
    given = tmp_path / "given"
    Scalar.load(policy, fresh_head=5).save(given)
    config = settings(reward_model=str(given))
    found = ensured(tmp_path / "reward", config, 0, ALONE, str(given), texts)
    assert found.folder == given
    assert not found.report["trained"]
    assert found.report["accuracy"] == found.report["accuracy_before"]
    assert same(Scalar.load(found.folder).state_dict(), Scalar.load(given).state_dict())


def test_a_model_that_reads_other_tokens_is_refused(texts: Texts, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other")
    vocabulary = json.loads((other / "tokenizer.json").read_text())
    words = vocabulary["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    (other / "tokenizer.json").write_text(json.dumps(vocabulary))
    with pytest.raises(ValueError, match="another tokenizer"):
        texts.check_same(str(other))


class TestJudges:
    """The actor's side."""

    def _judges(self, urls: Any) -> RlhfJudges:
        return RlhfJudges(urls, reference="", patience_s=2.0)

    def test_it_gets_scores_as_the_model_gives_them(self, policy: Path) -> None:
        model = RewardModel(Scalar.load(policy, fresh_head=0), Config(), ALONE)
        prompts, replies = [[5, 6], [7]], [[11, 1], [12, 13, 1]]
        with service(Scorer(model, ALONE, "f" * 64, {"accuracy": 0.9}).answers()) as served:
            judges = self._judges(lambda member: served.urls)
            assert judges.about() == {"accuracy": 0.9}
            assert judges.scores(prompts, replies) == model.scores(pack(prompts, replies)).tolist()
            judges.close()

    def test_another_model_than_before_is_a_policy_failure(self) -> None:
        packed = {"scores": "AAAAAA==", "model": "a" * 64}
        with service({"/score": lambda asked: packed, "/about": lambda asked: {"model": "b" * 64, "report": {}}}) as served:
            judges = self._judges(lambda member: served.urls)
            assert judges.scores([[5]], [[6, 1]]) == floats("AAAAAA==")
            judges.about()
            with pytest.raises(WrongReward, match="reward serves the model aaaaaaaaaaaa, this run's is bbbbbbbbbbbb"):
                judges.scores([[5]], [[6, 1]])
            judges.close()

    def test_no_answer_is_never_a_score_of_0(self) -> None:
        def broken(asked: dict[str, Any]) -> dict[str, Any]:
            raise ValueError("no")

        with service({"/score": broken}) as served:
            judges = self._judges(lambda member: served.urls)
            with pytest.raises(ServiceFailed, match="status 400"):
                judges.scores([[5]], [[6, 1]])
            served.stop()
            with pytest.raises(ServiceFailed, match="did not answer for 2 s"):
                judges.scores([[5]], [[6, 1]])
            judges.close()

    def test_fewer_scores_than_replies_are_refused(self) -> None:
        with service({"/score": lambda asked: {"scores": "AAAAAA==", "model": ""}}) as served:
            judges = self._judges(lambda member: served.urls)
            with pytest.raises(ServiceFailed, match="scored 1 replies of 2"):
                judges.scores([[5], [5]], [[6, 1], [7, 1]])
            judges.close()


def test_a_request_that_cannot_be_read_is_refused(policy: Path) -> None:
    scorer = Scorer(RewardModel(Scalar.load(policy, fresh_head=0), Config(), ALONE), ALONE, "", {})
    with pytest.raises(ValueError, match="tokens: from 0 to 127, got 1 … 200"):
        scorer.score({"sequences": wire.sequences([[5]], [[200, 1]])})
    with pytest.raises(KeyError):
        scorer.score({})

"""Claims with real processes: shared folders, exclusive ones, a user's script, models in a cache, what outlives a group."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import gangflow as gf
from gangflow.errors import Conflict, SpecError
from gangflow.specs.claims import Claim, StandaloneClaim
from gangflow.xce.hosts.checksums import checksum
from gangflow.xce.rest.schema import ClaimView, GroupView
from tests.integration.live.cluster import Live, ended, state, until

TINY: dict[str, Any] = {"cpu": "100m", "mem": "16MiB"}


def job(command: str, **more: Any) -> gf.Job:
    return gf.Job(["sh", "-c", command], resources=TINY, termination_grace="1s", **more)


SLEEPS = job("exec sleep 1000")


def standalone(live: Live, name: str, wanted: str = "READY", **fields: Any) -> ClaimView:
    """Make one and wait for it."""
    live.client.create_claim(StandaloneClaim(name, **fields))
    return until(lambda: found if (found := live.client.claim(name)).state == wanted else None, lambda: live.client.claim(name))


def reason(view: GroupView) -> str:
    return f"{view.reason.code}: {view.reason.text}" if view.reason is not None else ""


def test_an_exclusive_claim_goes_from_one_group_to_the_next(live: Live, tmp_path: Path) -> None:
    """The second holds nothing meanwhile, and says for whom it waits; nobody can take the claim away under either."""
    claim = standalone(live, "disk")
    claims = [Claim("d", uses="disk", access="exclusive")]
    say = 'echo "$XCE_GROUP $XCE_CLAIM_D" >> "$XCE_CLAIM_D/users"; '
    one = live.submit("one", {"a": job(f"{say} exec sleep 1000")}, claims=claims)
    state(one, "RUNNING")
    two = live.submit("two", {"a": job(say)}, claims=claims)
    until(lambda: reason(two.status()).startswith("WAITING_CLAIMS"), lambda: two.status())
    assert f"claim disk is held by {one.id} (exclusive)" in reason(two.status())
    with pytest.raises(Conflict) as refused:
        live.client.delete_claim("disk")
    assert refused.value.problem == "in_use"
    one.cancel()
    assert ended(two).state == "SUCCEEDED"
    users = Path(claim.path) / "users"
    assert users.read_text().splitlines() == [f"{one.id} {claim.path}", f"{two.id} {claim.path}"]
    live.client.delete_claim("disk")
    until(lambda: not Path(claim.path).exists(), "its folder to go")


def test_a_retained_claim_outlives_its_group_and_goes_when_it_is_deleted(live: Live) -> None:
    first = live.submit("first", {"a": job('echo trained > "$XCE_CLAIM_CKPT/weights"')}, claims=[Claim("ckpt", retain=True)])
    assert ended(first).state == "SUCCEEDED"
    name = f"{first.id}-ckpt"
    kept = live.client.claim(name)
    assert (kept.state, kept.standalone, (Path(kept.path) / "weights").read_text()) == ("READY", True, "trained\n")
    second = live.submit("second", {"a": job('grep trained "$XCE_CLAIM_W/weights"')}, claims=[Claim("w", uses=name)])
    assert ended(second).state == "SUCCEEDED"
    live.client.delete_claim(name)
    until(lambda: not Path(kept.path).exists(), "its folder to go")


def test_a_folder_that_disappears_is_found_and_made_again(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """`claim_lost`: who runs with it is restarted by its rule, and starts when it is there again."""
    lost = gf.FailureRule("restart_member", match={"cause": "claim_lost"}, backoff={"initial": "100ms", "max": "1s"})
    run = live.submit("loses", {"a": job("exec sleep 1000", on_failure=[lost])}, claims=[Claim("d")])
    state(run, "RUNNING")
    (claim,) = run.status().claims
    Path(claim.path).rmdir()
    until(lambda: run.status().claims[0].attempt == 2, lambda: run.status().claims)
    until(lambda: run.status().members[0].slots[0].incarnation == 2 and run.status().state == "RUNNING", lambda: run.status())
    assert run.status().members[0].slots[0].restarts == 1
    assert Path(claim.path).is_dir()


def test_a_users_script_makes_a_claim_and_takes_it_away(live: Live, tmp_path: Path) -> None:
    script = tmp_path / "claims.sh"
    folder = shlex.quote(str(tmp_path))
    script.write_text(
        f"#!/bin/sh\necho $1 $XCE_CLAIM_ID >> {folder}/calls\ncd {folder}\n"
        f"case $1 in provision) mkdir -p made && echo {folder}/made;; release) rmdir made;; *) exit 64;; esac\n"
    )
    script.chmod(0o700)
    claim = Claim("d", provider="command", parameters={"script": str(script)})
    run = live.submit("scripted", {"a": job('test "$XCE_CLAIM_D" = "$0"'.replace("$0", f"{tmp_path}/made"))}, claims=[claim])
    assert ended(run).state == "SUCCEEDED", run.status()
    until(lambda: not (tmp_path / "made").exists(), "its release")
    calls = [line for line in (tmp_path / "calls").read_text().splitlines() if not line.startswith("check")]
    assert calls == [f"provision {run.id}/d", f"release {run.id}/d"]


def test_a_bad_volume_holds_up_its_own_group_only_and_is_named(live: Live, tmp_path: Path) -> None:
    """Scenario 76: a script that hangs is ended at its own deadline, and asked again; another group starts meanwhile."""
    script = tmp_path / "hangs.sh"
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    script.chmod(0o700)
    bad = Claim("d", provider="command", timeout="1s", parameters={"script": str(script)})
    run = live.submit("stuck", {"a": SLEEPS}, claims=[bad])
    other = live.submit("other", {"a": job("true")}, claims=[Claim("d")])
    assert ended(other).state == "SUCCEEDED"
    until(lambda: run.status().claims[0].attempt >= 2, lambda: run.status().claims)
    assert run.status().state == "PREPARING"
    until(lambda: "not ready after 1s" in run.status().claims[0].message, lambda: run.status().claims)
    until(lambda: f"claim {run.id}/d failed (not ready after 1s)" in reason(run.status()), lambda: reason(run.status()))


def test_a_model_is_in_the_cache_once_for_all_slots_and_goes_when_there_is_need_of_room(live: Live, tmp_path: Path) -> None:
    source = tmp_path / "tiny-model"
    source.mkdir()
    (source / "config.json").write_text("{}")
    (source / "weights.bin").write_bytes(b"w" * 100_000)
    model = Claim("model", provider="model", parameters={"source": str(source), "sha256": checksum(source)})
    reads = 'cmp "$XCE_CLAIM_MODEL/weights.bin" ' + f"{source}/weights.bin; "
    run = live.submit(
        "models",
        {
            "actor": job(f"{reads} exit $?"),
            "rollout": gf.ReplicaSet(["sleep", "1000"], replicas=3, resources=TINY, termination_grace="1s"),
        },
        claims=[model],
    )
    assert ended(run).state == "SUCCEEDED", run.status()
    claims = run.status().claims
    assert len(claims) == 4, "one for each slot"
    assert {Path(claim.path).name for claim in claims} <= {"tiny-model", ""}
    (entry,) = (live.home.path / "cache" / "entries").iterdir()
    assert entry.name == checksum(source)
    until(lambda: not any((live.home.path / "cache" / "pins" / entry.name).iterdir()), "its pins to go")


def test_a_model_that_is_not_what_it_should_be_is_never_seen(live: Live, tmp_path: Path) -> None:
    source = tmp_path / "m.bin"
    source.write_bytes(b"x")
    model = Claim("model", provider="model", parameters={"source": str(source), "sha256": "0" * 64})
    run = live.submit("wrong", {"a": SLEEPS}, claims=[model], barrier={"timeout": "3s", "max_attempts": 1})
    view = ended(run)
    assert (view.state, view.cause) == ("FAILED", "barrier_timeout")
    assert "has the checksum" in view.message
    assert not (live.home.path / "cache" / "entries" / ("0" * 64)).exists()


def test_what_is_wrong_with_claims_is_told_at_submission(live: Live) -> None:
    for claim, path in (
        (Claim("d", provider="directry"), "claims[0].provider"),
        (Claim("d", uses="datasett"), "claims[0].uses"),
        (Claim("d", provider="model", parameters={"source": "/m"}), "claims[0].parameters.sha256"),
    ):
        with pytest.raises(SpecError) as refused:
            live.submit("refused", {"a": SLEEPS}, claims=[claim])
        assert [problem.path for problem in refused.value.problems] == [path]
    with pytest.raises(SpecError) as told:
        live.client.create_claim({"name": "m", "provider": "model", "parameters": {"source": "/m", "sha256": "0" * 64}})
    assert [problem.path for problem in told.value.problems] == ["provider"]

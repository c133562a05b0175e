"""What happened to a group, for people: durable records in, lines and facts out. Pure; the live table and the log share it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gangflow.channel import ELIGIBLE, Eligible
from gangflow.xce.rest.messages import EventView

MAX_LINES = 200
LASTING = frozenset({"FailureJudged", "TryVoided", "ClaimChanged"})
"""Records whose lines stay readable wherever a run is watched: what went wrong, and what followed from it."""

Line = tuple[int, str]
"""(at_ms, text)."""


@dataclass(slots=True)
class Readmission:
    """A rollout that died and came back: when its old incarnation ended, and when the new one was eligible again."""

    slot: str
    incarnation: int
    """The one that died."""
    died_ms: int
    served_ms: int = 0
    """0: not yet."""
    replacement: int = 0
    weights: str = ""

    @property
    def took_s(self) -> float:
        """Seconds from death to re-admission."""
        return (self.served_ms - self.died_ms) / 1000


def rule_name(document: Mapping[str, Any], member: str, rule: int) -> str:
    """What a failure rule is called: `rule 1 of rollout`, `rule 2` (of the group's), `the default rule`; counted from 1.

    `rule`: its place in the plan: the members' own in their order, then the group's, then the defaults; -1: none was asked.
    """
    if rule < 0:
        return "no rule"
    for name, kinds in (document.get("members") or {}).items():
        own = sum(len((kind or {}).get("on_failure") or ()) for kind in kinds.values() if isinstance(kind, dict))
        if rule < own:
            return f"rule {rule + 1} of {name}"
        rule -= own
    return f"rule {rule + 1}" if rule < len(document.get("failure") or ()) else f"the default rule of {member}"


@dataclass(slots=True)
class Story:
    """Folds the records of one group."""

    group: str
    rollout: str = "rollout"
    """The member that serves weights, as the group's RL coordinator has it; empty: it has none."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """The group's spec, as it was submitted; says which failure rules are its user's."""
    begin_ms: int = 0
    lines: list[Line] = field(default_factory=list)
    """The newest last; bounded."""
    lasting: list[Line] = field(default_factory=list)
    """Those of the lines that are not to scroll out of sight; bounded likewise."""
    readmissions: list[Readmission] = field(default_factory=list)
    weights: dict[tuple[int, int], str] = field(default_factory=dict)
    """(slot, incarnation) of the live rollouts → what they serve, or served last."""
    membership: int = 0
    placed_ms: int = 0
    released_ms: int = 0
    running_ms: int = 0
    stopping_ms: int = 0
    ended_ms: int = 0
    last_stderr: str = ""

    def feed(self, record: EventView) -> list[str]:
        """The lines that this record adds."""
        data = record.data
        text = getattr(self, f"_{record.type}", self._nothing)(data, record.at_ms)
        if not text:
            return []
        self.add((record.at_ms, text), lasting=record.type in LASTING)
        return [text]

    def add(self, line: Line, *, lasting: bool = False) -> None:
        """Append a line, of a record or of whoever watches."""
        for lines in (self.lines, self.lasting) if lasting else (self.lines,):
            lines.append(line)
            del lines[:-MAX_LINES]

    def _nothing(self, _data: dict[str, Any], _at: int) -> str:
        return ""

    def _GroupSubmitted(self, data: dict[str, Any], at: int) -> str:
        self.begin_ms = at
        return f"submitted as {data['group']}"

    def _GroupPlaced(self, _data: dict[str, Any], at: int) -> str:
        self.placed_ms = at
        return "placed: every required slot has its hosts; the barrier is closed"

    def _BarrierReleased(self, data: dict[str, Any], at: int) -> str:
        self.released_ms = at
        return f"barrier released: every slot prepared, every claim ready (epoch {data['epoch']})"

    def _TryVoided(self, data: dict[str, Any], _at: int) -> str:
        return f"start voided ({data['cause']}): {data['message']}; nothing was started"

    def _ClaimChanged(self, data: dict[str, Any], _at: int) -> str:
        claim = data["claim"]
        tried = claim["state"] == "FAILED" and claim["until_ms"]  # Without a deadline it is only kept as it is.
        if not tried and claim["state"] != "LOST":
            return ""
        slot = f" of {claim['member']}[{claim['index']}]" if claim["member"] else ""
        tries = f" (try {claim['attempt']})" if claim["state"] == "FAILED" else ""
        return f"claim {claim['plan']['name']}{slot} {claim['state']}{tries}: {claim['message']}"

    def _GroupChanged(self, data: dict[str, Any], at: int) -> str:
        if data["state"] == "RUNNING" and not self.running_ms:
            self.running_ms = at
        if data["state"] == "STOPPING":
            self.stopping_ms = at
        if data["state"] in {"SUCCEEDED", "FAILED", "CANCELLED"}:
            self.ended_ms = at
        because = ": ".join(part for part in (data.get("cause", ""), data.get("message", "")) if part)
        return f"{data['before']} → {data['state']}" + (f" ({because})" if because else "")

    def _ReasonNoted(self, data: dict[str, Any], _at: int) -> str:
        reason = data.get("reason")
        if not reason:
            return ""
        slot = f"{data['member']}[{data['index']}] " if data.get("member") else ""
        blocker = f"; blocked by {reason['blocker']}" if reason.get("blocker") else ""
        return f"{slot}waits, {reason['code']}: {reason['text']}{blocker}"

    def _SlotPlaced(self, data: dict[str, Any], _at: int) -> str:
        if data["incarnation"] == 1:
            return ""
        hosts = ", ".join(dict.fromkeys(task["host"] for task in data["tasks"]))
        return f"{data['member']}[{data['index']}] #{data['incarnation']} placed on {hosts}"

    def _SlotChanged(self, data: dict[str, Any], _at: int) -> str:
        if data["state"] != "READY" or data["incarnation"] == 1:
            return ""
        return f"{data['member']}[{data['index']}] #{data['incarnation']} is ready"

    def _SlotExited(self, data: dict[str, Any], at: int) -> str:
        exit_ = data["exit"]
        slot = f"{data['member']}[{data['index']}]"
        if exit_["cause"] is None:
            return f"{slot} #{data['incarnation']} ended ({'done' if data['state'] == 'DONE' else 'stopped'})"
        self.readmissions.append(Readmission(slot, data["incarnation"], at))
        self.last_stderr = exit_.get("stderr_tail", "")
        how = f"signal {exit_['signal']}" if exit_.get("signal") else f"code {exit_.get('code')}"
        tail = f"\n{self.last_stderr.rstrip()}" if self.last_stderr else ""
        return f"{slot} #{data['incarnation']} died: {exit_['cause']}, {how} {exit_.get('message', '')}".rstrip() + tail

    def _FailureJudged(self, data: dict[str, Any], _at: int) -> str:
        rule = rule_name(self.document, data["member"], data["rule"])
        because = "; ".join(part for part in (rule, data.get("message", "").removeprefix(f"{data['cause']}: ")) if part)
        slot = f"{data['member']}[{data['index']}] incarnation {data['incarnation']}"
        return f"{slot}: {data['cause']} → {data['action'] or 'placed again'} ({because})"

    def _SlotWarned(self, data: dict[str, Any], _at: int) -> str:
        left = data.get("left")
        return "" if left else f"{data['member']}[{data['index']}] #{data['incarnation']} was warned: its runtime limit is near"

    def _ValueWritten(self, data: dict[str, Any], at: int) -> str:
        if data["name"] != ELIGIBLE:
            return ""
        try:
            now = Eligible.parse(data["value"])
        except (ValueError, json.JSONDecodeError):
            return ""
        lines = []
        # Between two steps nobody is eligible: what a live engine served last stays on show.
        self.weights = {key: weights for key, weights in self.weights.items() if key in now.holding}
        self.weights |= {serving.key: str(serving.weights) for serving in now.rollouts}
        if now.membership_version != self.membership:
            self.membership = now.membership_version
            members = ", ".join(f"[{index}]#{incarnation}" for index, incarnation in now.holding) or "none"
            lines.append(f"membership {now.membership_version} of the rollouts: {members}")
        for serving in now.rollouts:
            for back in self.readmissions:
                same_slot = back.slot == f"{self.rollout}[{serving.index}]"
                if same_slot and not back.served_ms and serving.incarnation > back.incarnation:
                    back.served_ms, back.replacement, back.weights = at, serving.incarnation, str(serving.weights)
                    lines.append(
                        f"{back.slot} #{serving.incarnation} re-admitted after {back.took_s:.1f} s, weights {back.weights}"
                    )
        return "; ".join(lines)

"""Properties of specs: what renders reads back as the same, and no input does anything but parse or raise SpecError."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gangflow.errors import SpecError
from gangflow.specs.claims import Claim
from gangflow.specs.cluster import ClusterSpec, HostSpec
from gangflow.specs.container import Container, ContainerRuntime, Mount
from gangflow.specs.coordinator import RLCoordinator
from gangflow.specs.document import dump, load, plain, validate
from gangflow.specs.failure import RESTARTS, Backoff, FailureMatch, FailureRule
from gangflow.specs.group import Barrier, CoStartGroup, Placement, Recovery
from gangflow.specs.member import Job, Pack, ReplicaSet, Resources
from gangflow.specs.overrides import apply
from gangflow.specs.probes import ExecProbe, FileProbe, HttpProbe, TcpProbe
from gangflow.specs.profiles import WHOLE, Profile, merge
from gangflow.specs.quantity import (
    cpu_milli,
    duration_ms,
    gpu_milli,
    memory_mib,
    render_cpu,
    render_duration,
    render_gpu,
    render_memory,
)
from gangflow.specs.scale import Ratio, Scale, proportion, render_proportion
from gangflow.specs.warning import SIGNALS, RunWarning
from gangflow.xce.admission import ClusterDefaults, admit, task_terms

# --- whole specs -----------------------------------------------------------------------------------------------------

MANY = 1_000
RUNTIME = ContainerRuntime(
    ["run", "{name}", "{environment}", "{mounts}", "{image}", "{command}"],
    variable="{variable}",
    mount="{source}:{target}",
    probe=["exec", "{name}", "{command}"],
)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
whole = st.integers(1, 9_999)
REQUIREMENTS = (
    "select[type==any && mem>100] rusage[mem=1GB/host:cpu=0.5] order[-mem]",
    "2*{span[hosts=1] rusage[gpus=1/task]}+3*{span[ptile=2]}",
    "linux && !(slow || broken)",
    "",
)
spec_names = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
group_names = spec_names.filter(lambda name: not re.fullmatch("g[0-9]+", name))
texts = st.text(st.characters(exclude_characters="\x00", codec="utf-8"), max_size=15)
commands = st.lists(texts, min_size=1, max_size=3).filter(lambda command: bool(command[0]))
durations = st.integers(10, 10**9).map(lambda ms: f"{ms}ms")
environments = st.dictionaries(names.filter(lambda name: not name.startswith("XCE_")), texts, max_size=2)
backoffs = st.builds(
    lambda initial, factor, more: Backoff(initial=f"{initial}ms", factor=factor, max=f"{initial + more}ms"),
    st.integers(0, 10**6),
    st.floats(1, 100),
    st.integers(0, 10**6),
)
packs = st.builds(lambda level, required: Pack(level, required=required), names, st.booleans())
made_claims = st.builds(
    lambda name, retain, timeout, path: Claim(name, retain=retain, timeout=timeout, parameters={"path": path} if path else {}),
    spec_names,
    st.booleans(),
    durations,
    st.just("") | texts.map("/{}".format),
)
claims = made_claims | st.builds(
    lambda name, used, access: Claim(name, uses=used, access=access),
    spec_names,
    spec_names,
    st.sampled_from(["shared", "exclusive"]),
)
shapes = st.builds(
    Resources,
    cpu=st.none() | st.integers(0, 10**6).map("{}m".format),
    mem=st.none() | st.integers(0, 10**6),
    gpus=st.none() | st.integers(0, 1000).map(lambda milli: milli / 1000) | st.integers(1, 64),
    counters=st.dictionaries(names, whole, max_size=2),
)
causes = st.lists(st.sampled_from(["app_exit", "signal", "host_lost", "hung"]), unique=True)


@st.composite
def rules(draw: st.DrawFn, members: list[str]) -> FailureRule:
    action = draw(st.sampled_from(["tolerate", *RESTARTS, "fail_group"]))
    cause = draw(causes)
    fields: dict[str, Any] = (
        {"match": FailureMatch(cause=cause, exit_codes=draw(st.lists(st.integers(0, 255), max_size=2)))}
        if ("app_exit" in cause)
        else {"match": FailureMatch(cause=cause, member=draw(st.sampled_from(members)))}
    )
    if action in RESTARTS:
        fields |= {
            "max_restarts": draw(st.none() | st.integers(0, 9)),
            "window": draw(durations),
            "max_elapsed": draw(st.none() | durations),
            "backoff": draw(backoffs),
            "count_machine_losses": draw(st.booleans()),
        }
        if fields["max_restarts"] is not None or fields["max_elapsed"] is not None:
            fields["then"] = draw(st.sampled_from(["tolerate", "fail_group"]))
    return FailureRule(action, **fields)


owners = st.none() | st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,8}", fullmatch=True)
paths = st.from_regex(r"(/[a-z]{1,3}){1,3}/?", fullmatch=True)
mounts = st.lists(st.tuples(paths, paths).map(lambda pair: Mount(*pair)), max_size=2, unique_by=lambda mount: mount.target)
images = texts.filter(lambda text: text.isprintable() and text.strip() and not text.startswith("-"))
containers = st.builds(lambda image, mounts: Container(image, mounts=mounts), images, mounts)
warnings = st.builds(RunWarning, durations, st.sampled_from(sorted(SIGNALS)))
proportions = st.builds("{}/{}".format, st.integers(0, 99), st.integers(1, 99))


@st.composite
def limits(draw: st.DrawFn) -> dict[str, Any]:
    """What a member and a profile may say alike."""
    warning = draw(st.none() | warnings)
    return {
        "ready_timeout": draw(st.none() | durations),
        "termination_grace": draw(st.none() | durations),
        "drain": draw(st.none() | durations),
        "runtime_limit": f"{10**10}ms" if warning else draw(st.none() | durations),
        "warning": warning,
    }


@st.composite
def members(draw: st.DrawFn, name: str) -> Job | ReplicaSet:
    ports = draw(st.lists(spec_names, max_size=2, unique=True))
    timing = {"delay": draw(durations), "period": draw(durations), "failures": draw(whole), "successes": draw(whole)}
    probes: list[Any] = [None, ExecProbe(draw(commands), **timing), FileProbe("/" + draw(texts), **timing)]
    if ports:
        probes += [TcpProbe(ports[0], **timing), HttpProbe(ports[-1], "/health", **timing)]
    fields: dict[str, Any] = {
        "environment": draw(environments),
        "ports": ports,
        "ready": draw(st.sampled_from(probes)),
        "live": draw(st.sampled_from(probes)),
        "cwd": draw(texts),
        "on_failure": draw(st.lists(rules([name]), max_size=2)),
        "pack": draw(st.none() | packs),
        "claims": draw(st.lists(claims, max_size=1)),
        "owner": draw(owners),
        **draw(limits()),
    }
    if not fields["cwd"]:
        fields["container"] = draw(st.none() | containers)
    if draw(st.booleans()):
        fields["resreq"] = draw(st.sampled_from(REQUIREMENTS))
    else:
        fields |= {"resources": draw(st.none() | shapes), "tasks": draw(st.none() | whole)}
    if draw(st.booleans()):
        return Job(draw(commands), primary=draw(st.booleans()), **fields)
    low, more, most = draw(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)))
    fields |= draw(st.sampled_from([{}, {"min_replicas": low}, {"max_replicas": max(1, low + more + most)}]))
    return ReplicaSet(draw(commands), replicas=low + more, **fields)


@st.composite
def groups(draw: st.DrawFn) -> CoStartGroup:
    keys = draw(st.lists(spec_names, min_size=1, max_size=3, unique=True))
    found = {key: draw(members(key)) for key in keys}
    jobs = [key for key, member in found.items() if isinstance(member, Job)]
    services = [key for key, member in found.items() if isinstance(member, ReplicaSet) and member.ports and member.replicas]
    coordinator = None
    if jobs and services:
        coordinator = RLCoordinator(
            actor=jobs[0], rollout=services[0], port=found[services[0]].ports[0], quorum_timeout=draw(durations)
        )
    of_one = len(found) == 1 and not coordinator and draw(st.booleans())
    if of_one:
        found = {"main": draw(members("main"))}
    sets = {key: member.replicas for key, member in found.items() if isinstance(member, ReplicaSet)}
    ratios = [Ratio(a, b, max=draw(st.none() | st.just(MANY)), min=0) for a, b in zip(sets, list(sets)[1:], strict=False)]
    return CoStartGroup(
        draw(group_names),
        **({found["main"].tag: found["main"]} if of_one else {"members": found}),
        owner=draw(owners),
        scale=draw(st.builds(Scale, max_gpus=st.none() | st.just(10**6), timeout=durations)),
        ratio=[ratio for ratio in ratios if ratio.holds(sets[ratio.member], sets[ratio.to])],
        priority=draw(st.integers(0, 1_000)),
        environment=draw(environments),
        claims=draw(st.lists(claims, max_size=2)),
        placement=draw(st.builds(Placement, pack=st.none() | packs)),
        barrier=draw(st.builds(Barrier, timeout=durations, start_timeout=durations, max_attempts=whole, backoff=backoffs)),
        recovery=draw(
            st.builds(Recovery, timeout=durations)
            | st.builds(Recovery, exclude_host_after=whole, exclude_hosts_at_most=whole, exclude_window=durations)
        ),
        termination_delay=draw(durations),
        failure=draw(st.lists(rules(list(found)), max_size=2)),
        coordinator=coordinator,
    )


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_a_group_reads_back_from_its_document_and_from_its_json(data: st.DataObject) -> None:
    """Property 1."""
    try:
        group = data.draw(groups())
    except SpecError:  # names that meet: two claims or two address variables of one name
        return
    assert load(dump(group)) == group
    assert validate(CoStartGroup, json.loads(json.dumps(plain(group)))) == group


@given(st.data())
@settings(deadline=None, max_examples=50)
def test_admission_keeps_what_was_asked_for(data: st.DataObject) -> None:
    """Property 4: compiling loses no member, and the document inside the plan is the spec."""
    try:
        group = data.draw(groups())
    except SpecError:
        return
    levels = [member.pack.level for member in group.members.values() if member.pack]
    levels += [group.placement.pack.level] if group.placement.pack else []
    plan = admit(group, ClusterDefaults(levels=tuple(levels), container_runtime=RUNTIME), owner="me")
    assert [member.name for member in plan.members] == list(group.members)
    assert validate(CoStartGroup, json.loads(plan.document)) == group
    for member in plan.members:
        assert member.min_replicas <= member.replicas <= member.max_replicas
        assert all(use.amount > 0 for term in member.terms for use in term.uses)
        assert member.owner == group.members[member.name].owner or member.owner == plan.owner == (group.owner or "me")


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    fields = draw(limits())
    if draw(st.booleans()):
        fields["resreq"] = draw(st.sampled_from([text for text in REQUIREMENTS if "{" not in text]))
    else:
        fields["resources"] = draw(st.none() | shapes)
    return Profile(
        wrapper=draw(st.just([]) | commands),
        environment=draw(environments),
        container=draw(st.none() | containers),
        live=draw(st.none() | st.just(FileProbe("/x"))),
        **fields,
    )


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_a_profile_changes_nothing_that_a_member_says(data: st.DataObject) -> None:
    """Property 4: what the member gives wins, what it leaves out is the profile's, and merging twice changes nothing more."""
    try:
        member, profile = data.draw(members("m")), data.draw(profiles())
    except SpecError:
        return
    merged = merge(member, profile).member
    for key in WHOLE:
        own, default = getattr(member, key), getattr(profile, key)
        assert getattr(merged, key) == (default if own is None else own)
    assert merged.command == (*profile.wrapper, *member.command)
    for key in set(type(member).model_fields) - {*WHOLE, "command", "resources", "resreq"}:
        assert getattr(merged, key) == getattr(member, key)
    again = merge(merged, profile.model_copy(update={"wrapper": ()})).member
    assert task_terms(again, ClusterDefaults()) == task_terms(merged, ClusterDefaults())
    for term, before in zip(task_terms(merged, ClusterDefaults()), task_terms(member, ClusterDefaults()), strict=True):
        assert set(before.uses) <= set(term.uses)
        assert len({use.name for use in term.uses}) == len(term.uses)
        assert term.count == before.count


@given(proportions)
def test_proportions_read_back(text: str) -> None:
    """Property 1."""
    assert proportion(render_proportion(proportion(text))) == proportion(text)


@st.composite
def hosts(draw: st.DrawFn) -> HostSpec:
    return HostSpec(
        f"{draw(spec_names)}[0-3]",
        virtual_hosts=draw(st.integers(1, 4)),
        cpu=draw(st.none() | st.integers(0, 64)),
        mem=draw(st.none() | st.integers(0, 10**6)),
        gpus=draw(st.none() | st.integers(0, 8)),
        gpu_model=draw(texts),
        attributes=draw(st.dictionaries(names.map("a_{}".format), texts, max_size=2)),
        counters=draw(st.dictionaries(names.map("c_{}".format), whole, max_size=2)),
        domains={"switch": "s0"},
        ports=draw(st.integers(0, 64)),
    )


@given(
    st.lists(hosts(), min_size=1, max_size=3, unique_by=lambda host: host.name),
    st.sampled_from(["task", "host"]),
    st.dictionaries(spec_names, profiles(), max_size=2),
)
@settings(deadline=None, max_examples=50)
def test_a_cluster_reads_back_from_its_document(found: list[HostSpec], per: str, known: dict[str, Profile]) -> None:
    """Property 1."""
    cluster = ClusterSpec("c", levels=["switch"], hosts=found, reserve_per=per, profiles=known, container_runtime=RUNTIME)
    assert load(dump(cluster), ClusterSpec) == cluster


@given(st.integers(0, 10**12))
def test_quantities_read_back(amount: int) -> None:
    """Property 1."""
    assert duration_ms(render_duration(amount % 10**11)) == amount % 10**11
    assert memory_mib(render_memory(amount)) == amount
    assert cpu_milli(render_cpu(amount)) == amount
    assert gpu_milli(render_gpu(amount % 1000)) == amount % 1000


# --- no input crashes ------------------------------------------------------------------------------------------------

leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["10m", "4GiB", "rl"])
WORDS = (
    "name members job replica_set command failure match action claims ready http resreq tasks coordinator placement pack owner "
    "replicas hosts resources cpu environment backoff ports profile profiles container image mounts ratio min max scale "
    "warning before signal runtime_limit recovery exclude_host_after container_runtime variable"
)
keys = st.sampled_from(WORDS.split()) | st.text(max_size=6)
documents = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=5), max_leaves=20
)
EXAMPLE = dump(
    CoStartGroup(
        "g",
        {
            "a": Job(
                ["x", "1"], resources={"cpu": 1, "mem": "1GiB"}, on_failure=[FailureRule("restart_member", max_restarts=2)]
            ),
            "r": ReplicaSet(["y"], replicas=2, min_replicas=1, ports=["http"], ready=HttpProbe("http", "/health")),
        },
        claims=[Claim("ckpt")],
        coordinator=RLCoordinator(actor="a", rollout="r"),
    )
)


@given(documents)
@settings(deadline=None, max_examples=300)
def test_no_data_crashes_validation(data: object) -> None:
    """Property 2."""
    for model in (CoStartGroup, ClusterSpec):
        with suppress(SpecError):
            validate(model, data)


@given(st.text(max_size=80) | st.text(st.sampled_from("{}[]:,-&*!|>'\"%@`?# \n\tab1.<~"), max_size=40))
@settings(deadline=None, max_examples=500)
def test_no_text_crashes_the_loader(text: str) -> None:
    """Property 2."""
    with suppress(SpecError):
        load(text)


@given(
    st.integers(0, len(EXAMPLE)), st.integers(0, 12), st.text(max_size=8) | st.sampled_from([": ", "- ", "{", "[", "*a", "&a "])
)
@settings(deadline=None, max_examples=300)
def test_no_slip_in_a_good_document_crashes_the_loader(at: int, cut: int, put: str) -> None:
    """Property 2."""
    with suppress(SpecError):
        load(EXAMPLE[:at] + put + EXAMPLE[at + cut :])


@given(
    st.lists(st.text(max_size=20) | st.builds("{}={}".format, st.lists(keys, max_size=5).map(".".join), st.text(max_size=8)))
)
@settings(deadline=None, max_examples=300)
def test_no_text_crashes_overrides(texts: list[str]) -> None:
    """Property 2."""
    with suppress(SpecError):
        apply(load(EXAMPLE), texts)


def test_the_example_of_the_fuzzers_is_good() -> None:
    assert load(EXAMPLE).name == "g"
    with pytest.raises(SpecError):
        load(EXAMPLE + "?")

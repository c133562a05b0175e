"""Claims at admission: checked against the providers that the controller has, and turned into plans.

A group's claim of a provider whose works exist on the hosts of slots only (`model`) becomes one for each slot of every member.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

from gangflow.errors import GangflowError
from gangflow.specs.claims import Claim, StandaloneClaim
from gangflow.specs.faults import Fault, Loc, fault_error, nearest
from gangflow.specs.group import CoStartGroup
from gangflow.xce.core.plan import Access, ClaimPlan
from gangflow.xce.providers.rules import BuiltIn, Catalog, ProviderRules, parameter_faults

BUILT_IN = BuiltIn()


def claim_plans(group: CoStartGroup, providers: Catalog = BUILT_IN) -> Iterator[ClaimPlan]:
    """The plans of a group's claims, in order; `claim_faults` found nothing."""
    for claim in group.claims:
        if _rules(claim, providers).per_slot:
            for name in group.members:
                yield _plan(claim, name)
        else:
            yield _plan(claim, "")
    for name, member in group.members.items():
        for claim in member.claims:
            yield _plan(claim, name)


def claim_faults(
    group: CoStartGroup, providers: Catalog = BUILT_IN, standalone: Collection[str] | None = None
) -> Iterator[Fault]:
    """What the controller cannot do with a group's claims.

    `standalone`: names of the standalone claims that its author may use; None: not known, not checked.
    """
    per_slot = {claim.name for claim in group.claims if _rules(claim, providers).per_slot}
    for index, claim in enumerate(group.claims):
        at: Loc = ("claims", index)
        yield from _faults(at, claim, providers, standalone)
        for number, name in enumerate(claim.after):
            if name in per_slot and claim.name not in per_slot:
                expected = f"a claim of the whole group: {name} is made for each slot, so only a slot's claim can come after it"
                yield Fault((*at, "after", number), name, expected)
    for name, member in group.members.items():
        for index, claim in enumerate(member.claims):
            yield from _faults(("members", name, member.tag, "claims", index), claim, providers, standalone)


def standalone_plan(spec: StandaloneClaim, providers: Catalog = BUILT_IN) -> ClaimPlan:
    """The plan of a standalone claim. Raises SpecError for what its provider does not accept."""
    faults = list(_provider_faults((), spec.provider, spec.parameters, providers))
    if not faults and providers.rules(spec.provider).per_slot:
        expected = f"a provider whose claims can be used from every host: {spec.provider} makes them on the hosts of slots"
        faults.append(Fault(("provider",), spec.provider, expected))
    if faults:
        raise fault_error(faults)
    return ClaimPlan(spec.name, spec.provider, timeout_ms=spec.timeout, parameters=tuple(spec.parameters.items()))


def _faults(at: Loc, claim: Claim, providers: Catalog, standalone: Collection[str] | None) -> Iterator[Fault]:
    if claim.uses is not None:
        if standalone is not None and claim.uses not in standalone:
            usable = ", ".join(sorted(standalone)[:16]) or "there is none"
            expected = f"a standalone claim of an owner whom the caller may name: {usable}"
            yield Fault((*at, "uses"), claim.uses, expected, nearest(claim.uses, standalone))
        return
    yield from _provider_faults(at, claim.provider, claim.parameters, providers)
    if claim.retain and _rules(claim, providers).per_slot:
        expected = f"false: what {claim.provider} makes exists on the hosts of the slots only, so nobody else could use it"
        yield Fault((*at, "retain"), True, expected)


def _provider_faults(at: Loc, provider: str, parameters: dict[str, str], providers: Catalog) -> Iterator[Fault]:
    known = providers.names()
    if provider not in known:
        yield Fault((*at, "provider"), provider, "a known provider: " + ", ".join(known), nearest(provider, known))
        return
    try:
        rules = providers.rules(provider)
    except GangflowError as error:
        yield Fault((*at, "provider"), provider, f"a provider that can be loaded: {error.message}")
        return
    for fault in parameter_faults(provider, rules, parameters):
        yield replace(fault, loc=(*at, *fault.loc))


def _rules(claim: Claim, providers: Catalog) -> ProviderRules:
    """Of its provider; of one that is not known, or of a standalone claim, none."""
    try:
        return providers.rules(claim.provider) if claim.uses is None else ProviderRules()
    except (KeyError, GangflowError):
        return ProviderRules()


def _plan(claim: Claim, scope: str) -> ClaimPlan:
    if claim.uses is not None:
        return ClaimPlan(claim.name, scope=scope, uses=claim.uses, access=Access(claim.access))
    return ClaimPlan(
        name=claim.name,
        provider=claim.provider,
        scope=scope,
        retain=claim.retain,
        timeout_ms=claim.timeout,
        parameters=tuple(claim.parameters.items()),
        after=claim.after,
    )

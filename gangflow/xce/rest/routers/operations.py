"""For whoever operates the controller: is it alive, can it serve, what does it count, what does its contract say."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from gangflow.xce.rest.access import Service, Serving, shown
from gangflow.xce.rest.json_text import StrictRoute
from gangflow.xce.rest.messages import HealthView
from gangflow.xce.rest.metrics import MEDIA_TYPE, metrics_text
from gangflow.xce.rest.problems import Refusal

router = APIRouter(tags=["operations"], route_class=StrictRoute)


@router.get("/healthz", response_model=HealthView)
async def healthz(request: Request, service: Serving) -> Response:
    """The process answers. No token is needed."""
    return shown(_health(request, service, "ok"))


@router.get("/readyz", response_model=HealthView)
async def readyz(request: Request, service: Serving) -> Response:
    """It has recovered its journal and takes commands; else 503 says what is in the way. No token is needed."""
    trouble = service.controller.trouble
    if trouble is not None:
        raise Refusal(503, "not_ready", f"{trouble.code}: {trouble}", headers={"Retry-After": "1"})
    return shown(_health(request, service, "ready"))


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}})
async def metrics(service: Serving) -> Response:
    """Prometheus text."""
    text = metrics_text(service.state, service.controller.seq, service.streams.open.total())
    return Response(text, media_type=MEDIA_TYPE)


def _health(request: Request, service: Service, status: str) -> HealthView:
    state = service.state
    return HealthView(
        seq=service.controller.seq,
        horizon=service.controller.horizon,
        status=status,
        cluster_id=state.cluster_id,
        term=state.term,
        version=request.app.version,
    )

"""Machines that the recipes' large presets fill. No torch."""

from __future__ import annotations

from gangflow.specs.cluster import ClusterSpec, HostSpec


def machine(hosts: int, gpus: int = 8, hosts_per_domain: int = 1, hosts_per_switch: int = 8) -> ClusterSpec:
    """So many hosts with so many GPUs each; an NVLink domain and a switch span neighbours."""
    return ClusterSpec(
        name="machine",
        levels=["switch", "nvlink"],
        hosts=[
            HostSpec(
                f"n{index:02}",
                node=f"n{index:02}",
                address=f"10.0.0.{index + 1}",
                cpu=96,
                mem="1800GiB",
                gpus=gpus,
                domains={"switch": f"s{index // hosts_per_switch}", "nvlink": f"d{index // hosts_per_domain}"},
            )
            for index in range(hosts)
        ],
    )

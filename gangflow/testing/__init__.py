"""For tests of your own programs: a cluster in this process (`cluster`), and a member's context (`FakeContext`).

    with gangflow.testing.cluster(hosts=2, gpus=4) as cluster:
        run = cluster.launch(group)
        cluster.fail("rollout", 1, cause="oom")
        cluster.advance(seconds=5)
        cluster.assert_slot("rollout", 1, "READY", incarnation=2)

What decides is the production core with its placement and its REST service; processes, hosts and the clock are yours to move.
Needs neither pytest nor Ray. `pytest_plugins = ["gangflow.testing.fixtures"]` gives the fixture `gangflow_cluster`.
"""

from __future__ import annotations

from gangflow.testing.cluster import FakeCluster, cluster
from gangflow.testing.context import Ask, FakeContext, RolloutFailed
from gangflow.testing.xce import FakeXCE

__all__ = ["Ask", "FakeCluster", "FakeContext", "FakeXCE", "RolloutFailed", "cluster"]

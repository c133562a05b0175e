"""`order[…]`: which hosts a term likes best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gangflow.xce.placement.attributes import Attributes
from gangflow.xce.placement.snapshot import ClusterView
from gangflow.xce.placement.topology import Ints


def host_order(view: ClusterView, keys: Sequence[str], hosts: Ints, room: Ints) -> npt.NDArray[np.intp]:
    """Positions in `hosts`, best first: by each key in turn, then the least room, then the lowest index.

    A key prefers the largest value, with a leading `-` the smallest. Text is ordered alphabetically, smallest first.
    """
    attributes = Attributes(view)
    columns: list[npt.NDArray[np.int64]] = []
    for key in keys:
        name, reverse = key.lstrip("!-"), key.lstrip("!").startswith("-")
        if attributes.moving(name):
            values = attributes.free(name, view.free[hosts], view.gpu_free[hosts])
        else:
            column = attributes.fixed(name)
            if bool(column.numeric[hosts].all()):
                values = column.number[hosts]
            else:
                ranks = np.unique(column.text, return_inverse=True)[1].reshape(-1)
                values = -ranks.astype(np.int64)[hosts]
        columns.append(values if reverse else -values)
    columns.append(room)
    return np.lexsort(columns[::-1])

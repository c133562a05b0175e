"""Host agents: one plain process a node that prepares, starts, watches and stops tasks, and the links that speak to it."""

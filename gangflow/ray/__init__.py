"""The only room that imports Ray: a cluster of our own, and thin actors around plain classes."""

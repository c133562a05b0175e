"""Pieces of language-model recipes: problems and their verifier (no torch); a tiny model, batches, checkpoints, ranks."""

"""GRPO on column addition: a trainer, two rollout engines, a reward and a reference server, started together.

`config` says what can be set, `build` makes the co-start group; `actor`, `rollout`, `reward` and `ref` are its programs.
"""

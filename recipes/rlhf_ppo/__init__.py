"""RLHF with PPO: a policy, a critic, a learned reward model and a reference, with vLLM servers as generators.

`task` is what is learned (a preference that only the data shows), `config` says what can be set, `build` makes the co-start
group; `actor`, `critic` and `reward` are its own programs.
"""

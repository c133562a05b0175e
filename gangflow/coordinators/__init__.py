"""Reactions for one running group: pure decisions (`rl_state`, `rl_reaction`) in one thin shell (`shell`)."""

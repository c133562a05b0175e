"""GRPO on a language model: torch trains, vLLM generates. `config` has what can be set, `presets` what people run."""

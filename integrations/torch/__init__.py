"""What is asked of any causal language model in torch. Imports torch; nothing else of what trains or serves."""

"""Recipes: whole workloads as a configuration and a function that builds its co-start group. `catalog` lists them."""

"""Recipes: what to run. YAML files and the strict schema that reads them."""

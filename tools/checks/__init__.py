"""The repository's own checks: rules of the house that no linter knows. `python -m tools.checks` runs them all."""

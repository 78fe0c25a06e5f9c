"""Agents: a model, tools, and a history that never outgrows its window."""

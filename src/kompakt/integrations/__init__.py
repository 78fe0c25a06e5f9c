"""Adapters for agent frameworks: one module and one extra for each. Import the module of your framework.

Every adapter does the same: convert the framework's messages, compact, and map back by identity. A message that kompakt
did not change is the framework's own object. ``conversation`` has the common part.
"""

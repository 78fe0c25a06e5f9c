"""Decides what the model sees: the context, the strategies that change it, and the one call that makes it fit."""

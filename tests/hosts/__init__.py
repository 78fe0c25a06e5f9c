"""Real coding agents against a scripted provider: the vendors' own binaries, offline."""

"""One module a provider: parse, render, problems, repair, overflow, usage — gathered here as ``Wire`` values."""

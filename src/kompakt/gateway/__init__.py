"""The gateway: an HTTP server between agents and their providers that keeps every request inside the window."""

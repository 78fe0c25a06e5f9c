"""Output that must not change by accident: projections, and the public API."""

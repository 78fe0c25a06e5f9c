"""Sessions on a store: appended to, projected, compacted, taken back; never broken."""

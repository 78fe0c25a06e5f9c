"""The benchmark: real sessions in, measured promises out."""

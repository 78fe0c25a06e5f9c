"""Provider formats: one package per provider, each with one ``WIRE``; ``registry`` lists them."""

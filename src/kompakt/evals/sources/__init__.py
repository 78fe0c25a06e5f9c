"""One module a source of recorded sessions: ``matches`` tells its files by their shape, ``read`` yields sessions."""

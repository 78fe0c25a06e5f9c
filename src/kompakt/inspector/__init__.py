"""Pages, terminal screens and files that show ``kompakt.view`` to a person."""

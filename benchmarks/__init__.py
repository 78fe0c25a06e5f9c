"""Speed and accuracy of kompakt, compared with other libraries. `make bench` runs all of it.

One module per area. Functions named ``time_…`` and ``track_…`` follow the conventions of asv; ``measure`` returns the
rows of an area. Ratios are measured in one run on one machine, so they hold elsewhere; seconds do not.
"""

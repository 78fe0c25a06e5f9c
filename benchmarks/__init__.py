"""How fast and how exact kompakt is, beside what else there is. `make bench` runs all of it.

One module an area. Functions named ``time_…`` and ``track_…`` follow asv's conventions; ``measure`` gives an area's
rows. A ratio always comes from one run on one machine, so it holds elsewhere; seconds do not.
"""

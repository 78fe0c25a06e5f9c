"""The bounded cache: what it evicts, and what it always keeps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from kompakt.model.lru import Lru


def test_the_least_recently_used_entry_is_evicted() -> None:
    cache = Lru[str, int](2)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert cache.items() == [("a", 1), ("c", 3)] and "b" not in cache and cache.get("b") is None


def test_entries_count_by_their_weight() -> None:
    cache = Lru[str, bytes](10, len)
    cache.put("a", b"12345")
    cache.put("a", b"123")
    cache.put("b", b"1234567")
    assert [key for key, _ in cache.items()] == ["a", "b"]
    cache.remove("b")
    cache.remove("missing")
    cache.put("c", b"1234567")
    assert [key for key, _ in cache.items()] == ["a", "c"]


def test_the_newest_entry_stays_when_it_alone_exceeds_the_limit() -> None:
    cache = Lru[str, bytes](3, len)
    cache.put("a", b"1")
    cache.put("b", b"12345")
    assert cache.items() == [("b", b"12345")]
    cache.clear()
    cache.put("a", b"123")
    assert len(cache) == 1 and cache.get("a") == b"123"


def test_threads_may_share_a_cache() -> None:
    cache = Lru[int, int](50)

    def use(start: int) -> None:
        for number in range(2_000):
            cache.put((start + number) % 100, number)
            cache.get(number % 100)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(use, range(0, 100, 25)))
    assert len(cache) == 50

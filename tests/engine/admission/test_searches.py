"""Admission of search results and of directory listings."""

from __future__ import annotations

import msgspec
import pytest
from tests.engine.admission.test_kinds import HARD, LISTING, LOW, REFERENCE, SEARCH, admitted, body

from kompakt.engine.admission import admit


class TestSearches:
    def test_each_path_is_written_once(self) -> None:
        """With its matches below it."""
        found = admitted(SEARCH)
        assert found.kind == "search"
        shown = body(found.text)
        assert shown[0] == "src/package/module_0.py"
        assert shown[1] == "1:value = compute(number=0)"
        assert found.text.count("src/package/module_3.py") == 1
        assert "nothing left out" in found.text

    def test_a_comment_is_a_match_and_an_address_is_none(self) -> None:
        """Two slashes after a line number start a comment; after a word alone, a URL."""
        lines = [f"src/part_{n // 10}.go:{n + 1}:// word {'abcdef'[n % 6]} of it" for n in range(60)]
        shown = body(admitted("\n".join([*lines, "see https://example.com/a"])).text)
        assert shown[:2] == ["src/part_0.go", "1:// word a of it"]
        assert shown[-1] == "see https://example.com/a"

    def test_a_file_with_and_without_its_root_is_one(self) -> None:
        """Some tools write the lines around a match with another path than the match; the longer one stays."""
        lines = [
            f"{'' if n % 3 == 1 else '/home/me/work/'}src/part_{n // 9}.py{':-'[n % 3 != 1]}{n + 1}"
            f"{':-'[n % 3 != 1]}    use({n})"
            for n in range(54)
        ]
        shown = body(admitted("\n".join(lines)).text)
        assert [line for line in shown if "src/" in line] == [f"/home/me/work/src/part_{n}.py" for n in range(6)]
        assert shown[1:4] == ["1-use(0)", "2:use(1)", "3-use(2)"]

    @pytest.mark.parametrize(
        "paths",
        [["second/part.py", "first/part.py"], ["src/part.py", "old/src/part.py"], ["/a/part.py", "/b/c.py", "part.py"]],
        ids=["beside", "below", "another root"],
    )
    def test_files_of_one_name_are_not_one(self, paths: list[str]) -> None:
        """Only a path that one root completes is the same file."""
        more = ["/b/more.py", "more.py"] if len(paths) > 2 else []
        lines = [f"{path}:{n + 1}:    use({n})" for n in range(30) for path in [*paths, *more]]
        shown = body(admitted("\n".join(lines)).text)
        assert [line.split(" ")[0] for line in shown if line.startswith(tuple(paths))] == paths

    def test_every_path_stays(self) -> None:
        """For any limits."""
        few = msgspec.structs.replace(LOW, max_matches=2, max_matching_files=2)
        shown = body(admitted(SEARCH, few).text)
        assert [line for line in shown if line.startswith("src/")] == [
            *(f"src/package/module_{n}.py ⋯ 18 more" for n in range(2)),
            *(f"src/package/module_{n}.py ⋯ 20 more" for n in range(2, 5)),
        ]

    def test_compiler_output_is_not_a_search(self) -> None:
        """Every one of its lines is needed as it is."""
        lines = [f"src/a_{n}.c:{n}:5: error: unknown type name 'thing_{n}'" for n in range(60)]
        found = admit("\n".join(lines), reference=REFERENCE, settings=HARD)
        shown = "\n".join(lines) if found is None else found.text
        assert all(line in shown for line in lines)

    def test_lines_of_one_file_are_known_by_their_order(self) -> None:
        """Times of day are not line numbers."""
        matches = "\n".join(f"{n * 5}:    call(value)" for n in range(1, 60))
        assert admitted(matches, HARD).kind == "search"
        times = "\n".join(f"{n % 24}:{n % 60:02} call of the night watch {'x' * (n % 7)}" for n in range(60))
        assert admitted(times, HARD).kind == "log"


class TestListings:
    def test_a_folder_is_written_once(self) -> None:
        """No name is lost."""
        found = admitted(LISTING)
        assert found.kind == "listing"
        shown = body(found.text)
        assert shown[0].startswith("src/package/inner_0/: module_0.py module_1.py")
        paths = [f"{line.split(': ')[0]}{name}" for line in shown for name in line.split(": ")[1].split()]
        assert paths == LISTING.split("\n")

    def test_large_folders_are_listed_by_extension(self) -> None:
        """Beyond a limit, names are counted."""
        names = [f"data/part_{n}.{'csv' if n % 2 else 'txt'}" for n in range(500)]
        found = admitted("\n".join(names), HARD)
        assert "more: " in found.text
        assert ".csv" in found.text
        assert "lines folded" in found.text

    def test_a_long_listing_keeps_names_and_sizes(self) -> None:
        """Rights, owners and dates go."""
        rows = [f"-rw-r--r--  1 me  staff  {n * 10} Jan  8 12:0{n % 10} file_{n}.txt" for n in range(90)]
        found = admitted("\n".join(["total 90", *rows, "drwxr-xr-x  2 me  staff  64 Jan  8 12:00 inner"]))
        assert "file_7.txt 70" in body(found.text)
        assert "inner/" in body(found.text)

"""What the notes say was not done since the last edits: not run, not committed, not pushed."""

from __future__ import annotations

import pytest
from tests.engine.ledger.sample_ledgers import did, edited, ran, section, write, written
from tests.histories.messages import user

from kompakt.engine.ledger.items import STATE
from kompakt.engine.ledger.runs import MAX_NAMED_FILES, NO_COMMIT, NO_PUSH, NOT_COMMITTED, NOT_RUN
from kompakt.model.messages import Message

ASKED = [user("Fix the import.")]
STATUS = (
    "On branch fix/import\nYour branch is up to date with 'origin/fix/import'.\n\nChanges not staged for commit:\n"
    '  (use "git add <file>..." to update what will be committed)\n\tmodified:   a.py\n\n'
    'no changes added to commit (use "git add" and/or "git commit -a")'
)


def commit(*, failed: bool = False) -> list[Message]:
    return ran("git commit -qam 'Fix the import'", "error: nothing to commit" if failed else "", failed=failed)


class TestWhatWasNotRun:
    def test_files_edited_after_the_last_run_are_named(self) -> None:
        stated = written([*ASKED, *edited("a.py"), *ran("make test", "3 passed"), *edited("b.py")], STATE)
        assert NOT_RUN + "b.py" in stated

    @pytest.mark.parametrize("command", ["make", "cd app && npm run build", "FOO=1 ./check.sh", "cat a | python3 b.py"])
    def test_a_later_run_of_anything_counts(self, command: str) -> None:
        stated = written([*ASKED, *edited("a.py"), *ran(command, "ok")], STATE)
        assert not any(line.startswith(NOT_RUN) for line in stated)

    @pytest.mark.parametrize("command", ["grep -n x a.py", "cd app && git diff | head", "ls; cat a.py", "git add -A"])
    def test_looking_and_committing_run_nothing(self, command: str) -> None:
        assert NOT_RUN + "a.py" in written([*ASKED, *edited("a.py"), *ran(command, "x = 2")], STATE)

    @pytest.mark.parametrize(
        "command",
        [
            "cat > notes.md <<\\END\nIt's time to run\nmake test\nEND",
            "cat > notes.md <<'END-OF-NOTES'\nmake test\nEND-OF-NOTES",
            "cat <<A <<B\nmake test\nA\nnpm test\nB",
            'echo "say \\"x\\"; make test"',
            "if [ -f a.py ]; then (cat a.py | grep -c pytest); fi",
            "PAGER=cat git log && /usr/bin/ls",
        ],
    )
    def test_what_a_document_or_a_quote_names_was_not_run(self, command: str) -> None:
        stated = written([*ASKED, *edited("a.py"), *ran(command, "x = 2")], STATE)
        assert any(line.startswith(NOT_RUN + "a.py") for line in stated)

    @pytest.mark.parametrize(
        "command",
        [
            "python3 - <<END\nprint(1)\nEND",
            "echo $(make test)",
            "find . -name 'test_*' -exec python3 {} +",
            "echo '<<END'\nmake test",
            "echo it's done; make test",
            "bash -c 'cd app && make test'",
        ],
    )
    def test_what_may_have_been_run_counts(self, command: str) -> None:
        stated = written([*ASKED, *edited("a.py"), *ran(command, "ok")], STATE)
        assert not any(line.startswith(NOT_RUN) for line in stated)

    def test_an_answer_that_is_still_shown_counts(self) -> None:
        history = [*ASKED, *edited("a.py"), *ran("make test", "3 passed")]
        assert not any(line.startswith(NOT_RUN) for line in written(history, STATE, hidden=3))

    def test_many_files_are_cut_to_the_newest(self) -> None:
        names = [f"f{number}.py" for number in range(MAX_NAMED_FILES + 3)]
        stated = written([*ASKED, *(part for name in names for part in edited(name))], STATE)
        assert f"{NOT_RUN}{', '.join(names[3:])} and others" in stated

    def test_without_edits_nothing_is_missing(self) -> None:
        assert not written([*ASKED, *ran("ls", "a.py")], STATE)


class TestWhatWasNotCommitted:
    def test_no_commit(self) -> None:
        assert NO_COMMIT in written([*ASKED, *edited("a.py"), *ran("make", "ok")], STATE)

    def test_a_commit_that_failed_is_none(self) -> None:
        assert NO_COMMIT in written([*ASKED, *edited("a.py"), *commit(failed=True)], STATE)

    @pytest.mark.parametrize(
        "command",
        [
            "git commit --dry-run -am 'Fix the import'",
            "cat > notes.md <<END\ngit commit -am 'Fix'\nEND",
            "echo 'now run git commit and git push'",
            "git merge --abort",
        ],
    )
    def test_what_only_names_a_commit_is_none(self, command: str) -> None:
        assert NO_COMMIT in written([*ASKED, *edited("a.py"), *ran(command, "a.py")], STATE)

    @pytest.mark.parametrize(
        "command",
        ["git commit -qam 'Fix' && git push", "git commit -qam 'Fix'; make test", "git pull && git stash pop"],
    )
    def test_a_commit_before_the_end_of_a_failed_chain_may_have_been_made(self, command: str) -> None:
        assert NO_COMMIT not in written([*ASKED, *edited("a.py"), *ran(command, "rejected", failed=True)], STATE)

    def test_a_commit_at_the_end_of_a_failed_chain_was_not_made(self) -> None:
        history = [*ASKED, *edited("a.py"), *ran("make test && git commit -qam 'Fix' | tail", "no", failed=True)]
        assert NO_COMMIT in written(history, STATE)

    @pytest.mark.parametrize(
        "message", ["'Then git push'", "'Add --dry-run to git push'", '"$(cat <<E\ngit push\nE\n)"']
    )
    def test_the_message_of_a_commit_is_no_push(self, message: str) -> None:
        stated = written([*ASKED, *edited("a.py"), *ran(f"git -C app commit -m {message}", "1 file changed")], STATE)
        assert NO_PUSH in stated and NO_COMMIT not in stated

    @pytest.mark.parametrize(
        "command",
        [
            "sudo -n git push",
            "if git diff --quiet; then git push; fi",
            "bash <<E\ngit push\nE",
            "ssh host 'cd a; git push'",
        ],
    )
    def test_a_push_by_other_means_counts(self, command: str) -> None:
        assert NO_PUSH not in written([*ASKED, *edited("a.py"), *commit(), *ran(command, "main -> main")], STATE)

    def test_a_push_that_was_only_tried_is_none(self) -> None:
        tried = [*ran("git push --dry-run", "main -> main"), *ran("git push -n", "main -> main")]
        assert NO_PUSH in written([*ASKED, *edited("a.py"), *commit(), *tried], STATE)

    def test_agents_without_a_shell_cannot_commit(self) -> None:
        assert NO_COMMIT not in written([*ASKED, *edited("a.py")], STATE)

    def test_edits_after_a_commit_that_was_not_pushed(self) -> None:
        stated = written([*ASKED, *edited("a.py"), *commit(), *edited("b.py"), *ran("make", "ok")], STATE)
        assert NOT_COMMITTED + "b.py" in stated and NO_PUSH in stated and NO_COMMIT not in stated

    def test_after_a_push_nothing_is_missing(self) -> None:
        history = [*ASKED, *edited("a.py"), *ran("make", "ok"), *commit(), *ran("git push", "main -> main")]
        assert not {NO_COMMIT, NO_PUSH} & set(written(history, STATE))

    def test_a_tool_that_commits(self) -> None:
        history = [*ASKED, *edited("a.py"), *ran("make", "ok"), *did({"message": "Fix"}, name="git_commit")]
        assert not {NO_COMMIT, NO_PUSH} & set(written(history, STATE))


class TestLaterPasses:
    """The originals are gone; what the earlier notes said holds until a later call changes it."""

    EARLIER = write([*ASKED, *ran("ls", "a.py"), *edited("a.py")])

    def test_it_still_holds(self) -> None:
        stated = section(write(edited("b.py"), earlier=self.EARLIER), STATE)
        assert NOT_RUN + "a.py, b.py" in stated and NO_COMMIT in stated

    def test_a_run_settles_it(self) -> None:
        stated = section(write(ran("make", "ok"), earlier=self.EARLIER), STATE)
        assert not any(line.startswith(NOT_RUN) for line in stated) and NO_COMMIT in stated

    def test_a_commit_settles_it(self) -> None:
        stated = section(write(commit(), earlier=self.EARLIER), STATE)
        assert NO_COMMIT not in stated and NO_PUSH in stated

    def test_files_edited_after_an_earlier_commit(self) -> None:
        earlier = write([*ASKED, *edited("a.py"), *commit(), *edited("b.py")])
        assert NOT_COMMITTED + "b.py, c.py" in section(write(edited("c.py"), earlier=earlier), STATE) or (
            NOT_COMMITTED + "b.py" in section(write(edited("c.py"), earlier=earlier), STATE)
        )

    def test_nothing_is_assumed_about_a_part_that_said_nothing(self) -> None:
        earlier = write([*ASKED, *ran("git log", "abc Fix the import")])
        stated = section(write([*edited("b.py"), *ran("make", "ok")], earlier=earlier), STATE)
        assert not {NO_COMMIT, NO_PUSH} & set(stated)


class TestStateOfTheRepository:
    def test_git_status_without_its_advice(self) -> None:
        [said] = written([*ASKED, *ran("cd /repo && git status", STATUS)], STATE)
        assert said.startswith("`cd /repo && git status` showed: ")
        assert "On branch fix/import / " in said and "modified: a.py" in said and "use " not in said

    def test_the_list_of_files_does_not_hold_after_an_edit(self) -> None:
        stated = written([*ASKED, *ran("git status", STATUS), *edited("b.py"), *ran("make", "ok")], STATE)
        [said] = [line for line in stated if "git status" in line]
        assert "On branch fix/import" in said and "a.py" not in said

    def test_the_newest_answer_counts_and_none_after_a_commit(self) -> None:
        again = ran("git status", "On branch main")
        [said] = [line for line in written([*ASKED, *ran("git status", STATUS), *again], STATE) if "status" in line]
        assert "On branch main" in said and "fix/import" not in said
        assert not any("status" in line for line in written([*ASKED, *ran("git status", STATUS), *commit()], STATE))

    SWITCHES = (
        ran("git checkout main && git pull", "Switched to branch 'main'\nAlready up to date."),
        ran("git checkout -b fix/paths", "Switched to a new branch 'fix/paths'"),
    )

    def test_only_the_newest_branch_is_named(self) -> None:
        first, second = self.SWITCHES
        newest = "`git checkout -b fix/paths` → \"Switched to a new branch 'fix/paths'\""
        assert written([*ASKED, *first, *second], STATE) == [newest]
        assert section(write(second, earlier=write([*ASKED, *first])), STATE) == [newest]
        assert written([*ASKED, *first, *second], STATE, hidden=3) == []  # the reader sees the second
        assert len(written([*ASKED, *first], STATE)) == 1

    @pytest.mark.parametrize(
        "command",
        [
            "git checkout main && git merge fix/a && git push",
            "git checkout -- a.py",
            "cd ../other && git checkout main",
        ],
    )
    def test_other_changes_of_the_repository_stay(self, command: str) -> None:
        first = ran(command, "Switched to branch 'main'")
        assert len(written([*ASKED, *first, *self.SWITCHES[1]], STATE)) == 2

    def test_of_one_push_repeated_the_newest_is_stated(self) -> None:
        pushes = [*ran("git push", "abc..def main -> main"), *commit(), *ran("git push", "def..123 main -> main")]
        assert [line for line in written(pushes, STATE) if "push" in line] == ['`git push` → "def..123 main -> main"']

    def test_a_state_that_an_earlier_pass_showed_is_overtaken(self) -> None:
        earlier = write([*ASKED, *ran("git status", STATUS)])
        assert "git status" in "".join(section(write(ran("make", "ok"), earlier=earlier), STATE))
        for later in (commit(), ran("git status", "On branch main")):
            assert "fix/import" not in write(later, earlier=earlier)

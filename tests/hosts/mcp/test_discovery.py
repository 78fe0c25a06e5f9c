"""Which transcripts belong to a folder."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path

import pytest
from tests.hosts.mcp.workspace import SECRET, Workspace, rollout, talk, write
from tests.wire.transcripts.transcript_files import Writer, item, result

import kompakt
from kompakt.hosts import places
from kompakt.hosts.mcp.discovery import transcripts_of


def found(workspace: Workspace, client: str = "") -> list[str]:
    return [one.session for one in transcripts_of(workspace.project, workspace.environ, client=client)]


class TestClaudeCode:
    def test_the_newest_transcript_is_first(self, workspace: Workspace) -> None:
        for session, at in (("b", 2_000), ("c", 3_000), ("a", 1_000)):
            workspace.claude_code(session, talk(workspace.project).records, at=at)
        assert found(workspace) == ["c", "b", "a"]

    def test_folders_with_the_same_slug_are_told_apart(self, workspace: Workspace) -> None:
        """``project-x`` and ``project/x`` have the same name in Claude Code."""
        inside, beside = workspace.project / "x", Path(f"{workspace.project}-x")
        workspace.claude_code("inside", talk(inside).records, folder=inside)
        workspace.claude_code("beside", talk(beside).records, folder=beside)
        assert [one.session for one in transcripts_of(beside, workspace.environ)] == ["beside"]

    def test_transcripts_of_sub_agents_are_skipped(self, workspace: Workspace) -> None:
        workspace.claude_code("agent-1", talk(workspace.project).records, at=2_000)
        workspace.claude_code("mine", talk(workspace.project).records)
        assert found(workspace) == ["mine"]

    def test_a_session_that_changed_its_folder_belongs_to_the_first(self, workspace: Workspace) -> None:
        records = [*talk(workspace.project).records, *Writer(cwd=str(workspace.project / "src")).user("x").records]
        workspace.claude_code("mine", records)
        assert found(workspace) == ["mine"]

    def test_a_long_folder_name_is_found_by_its_start(self, workspace: Workspace) -> None:
        """Claude Code cuts long names and appends a hash."""
        deep = workspace.project.joinpath(*(["very-long-folder-name"] * 12))
        slug = "".join(char if char.isalnum() else "-" for char in str(deep))[:200] + "-1x2y3z"
        folder = Path(workspace.environ["CLAUDE_CONFIG_DIR"], "projects", slug)
        path = workspace.claude_code("mine", talk(deep).records)
        folder.mkdir()
        path.rename(folder / path.name)
        assert [one.session for one in transcripts_of(deep, workspace.environ)] == ["mine"]


class TestCodex:
    def test_rollouts_are_found_by_their_folder(self, workspace: Workspace) -> None:
        workspace.codex("mine", rollout(workspace.project, "mine"))
        workspace.codex("theirs", rollout(workspace.project.parent, "theirs"))
        workspace.codex("helper", rollout(workspace.project, "helper", source={"subagent": "review"}))
        workspace.codex("broken", ["no header"])
        assert found(workspace) == ["mine"]

    def test_a_rollout_whose_header_is_written_later_is_found_then(self, workspace: Workspace) -> None:
        path = workspace.codex("mine", [])
        assert found(workspace) == []
        workspace.codex("mine", rollout(workspace.project, "mine"))
        assert path.exists() and found(workspace) == ["mine"]


class TestOtherAgents:
    def test_sessions_of_pi_are_found_by_their_folder(self, workspace: Workspace) -> None:
        for name, folder in (("mine", workspace.project), ("theirs", workspace.project.parent)):
            header = {"type": "session", "version": 3, "id": name, "cwd": str(folder)}
            said = {"type": "message", "id": "e1", "parentId": None, "message": {"role": "user", "content": "walrus"}}
            write(workspace.root / "home" / ".pi" / "agent" / "sessions" / "x" / f"{name}.jsonl", [header, said], 1_000)
        assert found(workspace) == ["mine"]
        assert "walrus" in workspace.call("recall", {"query": "walrus"})[0]

    @pytest.mark.parametrize("digits", [16, 64])
    def test_sessions_of_gemini_cli_are_found_by_the_hash_of_their_folder(
        self, workspace: Workspace, digits: int
    ) -> None:
        for name, folder in (("mine", workspace.project), ("theirs", workspace.project.parent)):
            project = hashlib.sha256(str(folder).encode()).hexdigest()[:digits]
            header = {"sessionId": name, "projectHash": project, "startTime": "2026-01-01T00:00:00Z", "kind": "main"}
            said = {"id": "u1", "type": "user", "content": [{"text": "walrus"}]}
            chats = workspace.root / "home" / ".gemini" / "tmp" / project / "chats"
            write(chats / f"session-{name}.jsonl", [header, said], 1_000)
        assert found(workspace) == ["mine"]
        assert "walrus" in workspace.call("recall", {"query": "walrus"})[0]


class TestClient:
    def test_a_client_gets_transcripts_of_its_own_kind(self, workspace: Workspace) -> None:
        workspace.claude_code("claude", talk(workspace.project).records, at=1_000)
        workspace.codex("codex", rollout(workspace.project, "codex"), at=2_000)
        assert found(workspace) == ["codex", "claude"]
        assert found(workspace, "claude-code") == ["claude"]
        assert found(workspace, "codex-mcp-client") == ["codex"]
        assert found(workspace, "some editor") == ["codex", "claude"]
        assert found(workspace, "gemini-cli-mcp-client") == []

    def test_opencode_never_gets_the_session_of_another_agent(self, workspace: Workspace) -> None:
        """Its client is named ``opencode``; its sessions are those that the plugin noted."""
        workspace.claude_code("claude", talk(workspace.project).records, at=2_000)
        assert found(workspace, "opencode") == []
        path = write(workspace.root / "own.jsonl", talk(workspace.project).records, 1_000)
        places.note_session("opencode", "own", folder=str(workspace.project), transcript=str(path))
        assert found(workspace, "opencode") == ["own"]


class TestCaller:
    """Several sessions in one folder: the one that waits for the answer of the call is served."""

    def test_the_transcript_with_the_open_call_is_chosen(self, workspace: Workspace) -> None:
        call = {"type": "tool_use", "id": "c7", "name": "mcp__kompakt__recall", "input": {"query": "staging"}}
        asking = talk(workspace.project, "The key of the asking session is heron.")
        workspace.claude_code("asking", asking.assistant("m9", call).records, at=1_000)
        workspace.claude_code("newer", talk(workspace.project).records, at=2_000)
        assert "heron" in workspace.call("recall", {"query": "key"})[0]
        assert "transcript newer" in workspace.call("status")[0]
        workspace.claude_code("asking", asking.user([result("c7", "found")]).records, at=1_000)
        assert SECRET in workspace.call("recall", {"query": "key"})[0]

    def test_of_two_open_calls_the_one_with_the_same_arguments_is_chosen(self, workspace: Workspace) -> None:
        for name, at in (("heron", 1_000), ("crane", 2_000)):
            call = {"type": "tool_use", "id": "c7", "name": "mcp__kompakt__recall", "input": {"query": f"key {name}"}}
            asking = talk(workspace.project, f"The key of this session is {name}.")
            workspace.claude_code(name, asking.assistant("m9", call).records, at=at)
        assert "session is heron" in workspace.call("recall", {"query": "key heron"})[0]
        assert "session is crane" in workspace.call("recall", {"query": "key crane"})[0]

    def test_an_open_call_of_a_rollout_is_found(self, workspace: Workspace) -> None:
        call = {"type": "function_call", "call_id": "c7", "name": "kompakt__status", "arguments": "{}"}
        workspace.codex("asking", [*rollout(workspace.project, "asking"), item(**call)], at=1_000)
        workspace.codex("newer", rollout(workspace.project, "newer"), at=2_000)
        assert "transcript asking" in workspace.call("status")[0]
        assert "transcript newer" in workspace.call("ledger")[0]


class TestStoreInTheFolder:
    def test_a_store_that_was_not_named_is_not_opened(self, workspace: Workspace) -> None:
        """A repository may bring a file of this name."""

        async def fill() -> None:
            async with await kompakt.open_store(f"sqlite:///{workspace.project / 'kompakt.db'}") as store:
                await (await store.session("planted")).append(
                    [{"role": "user", "content": "Obey."}], format="anthropic"
                )

        asyncio.run(fill())
        text, is_error = workspace.call("recall", {"query": "Obey"})
        assert is_error and "no session found" in text
        assert "there is no session" in workspace.call("recall", {"query": "Obey", "session": "planted"})[0]


class TestNote:
    def test_a_note_of_hooks_names_transcript_and_store(self, workspace: Workspace) -> None:
        """Also for an agent whose transcripts are elsewhere."""
        path = write(workspace.root / "elsewhere.jsonl", talk(workspace.project).records, 1_000)
        places.note_session("claude-code", "mine", folder=str(workspace.project), transcript=str(path))
        (noted,) = transcripts_of(workspace.project, workspace.environ)
        assert (noted.session, noted.path, noted.store) == ("mine", path, places.store_url())

    def test_a_note_on_a_folder_above_is_ignored(self, workspace: Workspace) -> None:
        """A session in the home folder does not belong to every project below it."""
        path = write(workspace.root / "elsewhere.jsonl", talk(workspace.root).records, 1_000)
        places.note_session("claude-code", "above", folder=str(workspace.root), transcript=str(path))
        assert found(workspace) == []

    def test_a_note_on_a_file_that_is_gone_is_ignored(self, workspace: Workspace) -> None:
        places.note_session("claude-code", "gone", folder=str(workspace.project), transcript=os.devnull + "x")
        assert found(workspace) == []

    def test_every_session_of_a_folder_is_noted(self, workspace: Workspace) -> None:
        """Two sessions that run at the same time: a caller may name either."""
        for name in ("first", "second"):
            path = write(
                workspace.root / f"{name}.jsonl", talk(workspace.project, f"The heron is {name}.").records, 1_000
            )
            places.note_session("opencode", name, folder=str(workspace.project), transcript=str(path))
        assert sorted(found(workspace)) == ["first", "second"]
        assert "heron is first." in workspace.call("recall", {"query": "heron", "session": "first"})[0]

    def test_old_notes_are_removed(self, workspace: Workspace) -> None:
        for number in range(places.MAX_NOTES + 5):
            places.note_session("opencode", f"s{number}", folder=str(workspace.project), transcript=None)
        assert len(places.noted_sessions(str(workspace.project))) == places.MAX_NOTES

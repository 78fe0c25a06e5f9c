"""How the command line starts."""

from __future__ import annotations

import pytest

from kompakt import cli


def test_an_interrupt_during_the_imports_ends_without_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "import_module", interrupted)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 130

"""A local model provider that rejects what the real ones reject and records every request.

Written from the providers' documents alone: nothing in this package but its own test imports the library under test.
"""

from __future__ import annotations

from tests.provider.answer import Answer, Call, Usage
from tests.provider.script import Script
from tests.provider.server import Provider, Record
from tests.provider.summaries import empty, garbage, good, huge, refusing

__all__ = ["Answer", "Call", "Provider", "Record", "Script", "Usage", "empty", "garbage", "good", "huge", "refusing"]

"""An MCP server for the sessions of agents: search and restore, the ledger, and the status of a session.

``server`` speaks the protocol, ``sessions`` reads transcripts and stored sessions, ``discovery`` finds the session of
the client, ``untrusted`` frames recorded text.
"""

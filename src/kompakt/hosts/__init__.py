"""Coding agents as hosts: hooks, install and undo, and the MCP server."""

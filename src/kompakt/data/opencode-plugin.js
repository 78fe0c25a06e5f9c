// Written by `kompakt install opencode`. To remove it: `kompakt install opencode --undo`.
import { spawn } from "node:child_process"

const HOOK = __HOOK__
const MCP = __MCP__
const MIN_OUTPUT = 12000 // characters, about 3,000 tokens
const SHORTENED = ["bash", "grep"] // not file reads: an agent edits what it has read
const OWN_TOOLS = ["kompakt_recall", "kompakt_ledger", "kompakt_status", "kompakt_manage"]
const MILLISECONDS = 30000

// Runs the hook program and returns what it prints; an empty text after any failure, so that opencode continues.
function hook(event, given) {
  return new Promise((resolve) => {
    let child, timer, text = ""
    const end = (answer) => { clearTimeout(timer); resolve(answer) }
    try {
      const options = MCP ? [] : ["--no-recall"]
      child = spawn(HOOK[0], [...HOOK.slice(1), "opencode", event, ...options], { stdio: ["pipe", "pipe", "ignore"] })
    } catch {
      return end("")
    }
    timer = setTimeout(() => { child.kill(); end("") }, MILLISECONDS)
    child.on("error", () => end(""))
    child.stdin.on("error", () => {})
    child.stdout.setEncoding("utf8")
    child.stdout.on("data", (part) => { text += part })
    child.on("close", (code) => end(code === 0 ? text : ""))
    child.stdin.end(JSON.stringify(given))
  })
}

export const KompaktPlugin = async ({ directory }) => {
  const started = new Set()
  const notes = new Map()
  const ask = (event, session, more) => hook(event, { session_id: session, cwd: directory, ...more })
  return {
    config: async (config) => {
      if (!MCP) return // the server is not installed
      config.mcp ??= {}
      config.mcp.kompakt ??= { type: "local", command: MCP, enabled: true }
    },
    "chat.message": async ({ sessionID }) => {
      if (started.has(sessionID)) return
      started.add(sessionID)
      await ask("SessionStart", sessionID)
    },
    // Several sessions may share one server and one folder, so a call of our tools says which session asks.
    "tool.execute.before": async ({ tool, sessionID }, { args }) => {
      if (!MCP || !OWN_TOOLS.includes(tool) || typeof args !== "object" || args === null) return
      await ask("SessionStart", sessionID) // the server reads what this exports
      args.session ??= sessionID
    },
    "tool.execute.after": async ({ tool, sessionID, callID, args }, output) => {
      if (!SHORTENED.includes(tool) || typeof output.output !== "string" || output.output.length < MIN_OUTPUT) return
      const call = { tool_name: tool, tool_use_id: callID, tool_input: args, output: output.output }
      const short = await ask("PostToolUse", sessionID, call)
      if (short) output.output = short
    },
    "experimental.session.compacting": async ({ sessionID }, output) => {
      const text = await ask("PreCompact", sessionID)
      if (text) output.context.push(text)
    },
    // Every request after a compaction: the notes follow the summary. They are the same each time.
    "experimental.chat.messages.transform": async (_, output) => {
      const summary = output.messages.findLast(({ info }) => info.role === "assistant" && info.summary === true)
      const part = summary?.parts.findLast(({ type }) => type === "text")
      if (!part) return
      const { id, sessionID } = summary.info
      if (!notes.has(id)) notes.set(id, await ask("Notes", sessionID, { summary: id }))
      const text = notes.get(id)
      if (text && !part.text.endsWith(text)) part.text += "\n\n" + text
    },
    event: async ({ event }) => {
      if (event.type === "session.idle") await ask("Stop", event.properties.sessionID)
    },
  }
}

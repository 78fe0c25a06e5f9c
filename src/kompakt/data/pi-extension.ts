// Written by `kompakt install pi`. To remove it: `kompakt install pi --undo`.
import { spawn } from "node:child_process"

const HOOK = __HOOK__
const RECALL = __RECALL__
const MIN_OUTPUT = 12000 // characters, about 3,000 tokens
const SHORTENED = ["bash", "grep"] // not file reads: an agent edits what it has read
const MILLISECONDS = 30000

// Runs the hook program and returns what it prints; an empty text after any failure, so that pi goes on.
function hook(event: string, given: any): Promise<string> {
  return new Promise((resolve) => {
    let child: any, timer: any, text = ""
    const end = (answer: string) => { clearTimeout(timer); resolve(answer) }
    try {
      child = spawn(HOOK[0], [...HOOK.slice(1), "pi", event], { stdio: ["pipe", "pipe", "ignore"] })
    } catch {
      return end("")
    }
    timer = setTimeout(() => { child.kill(); end("") }, MILLISECONDS)
    child.on("error", () => end(""))
    child.stdin.on("error", () => {})
    child.stdout.setEncoding("utf8")
    child.stdout.on("data", (part: string) => { text += part })
    child.on("close", (code: number) => end(code === 0 ? text : ""))
    child.stdin.end(JSON.stringify(given))
  })
}

export default function (pi: any) {
  const notes = new Map<string, string>()
  const ask = async (event: string, ctx: any, more: any = {}): Promise<string> => {
    const transcript = ctx.sessionManager.getSessionFile()
    if (!transcript) return "" // a session that is not saved
    return hook(event, { session_id: ctx.sessionManager.getSessionId(), cwd: ctx.cwd, transcript_path: transcript, ...more })
  }
  pi.on("session_start", async (_: any, ctx: any) => { await ask("SessionStart", ctx) })
  pi.on("agent_end", async (_: any, ctx: any) => { await ask("Stop", ctx) })
  pi.on("session_compact", async (_: any, ctx: any) => { await ask("Stop", ctx) })
  pi.on("tool_result", async (event: any, ctx: any) => {
    const [part, ...others] = event.content ?? []
    if (!SHORTENED.includes(event.toolName) || others.length || part?.type !== "text" || part.text.length < MIN_OUTPUT) return
    const call = { tool_name: event.toolName, tool_use_id: event.toolCallId, tool_input: event.input, output: part.text }
    const short = await ask("PostToolUse", ctx, call)
    if (short) return { content: [{ type: "text", text: short }], details: event.details }
  })
  // Every request after a compaction: the notes follow the summary. They are the same each time.
  pi.on("context", async (event: any, ctx: any) => {
    const summary = event.messages.findLast((message: any) => message.role === "compactionSummary")
    if (!summary) return
    const id = String(summary.timestamp)
    if (!notes.has(id)) notes.set(id, await ask("Notes", ctx, { summary: id }))
    const text = notes.get(id)
    if (text) summary.summary += "\n\n" + text
    return { messages: event.messages }
  })
  pi.registerTool({
    name: RECALL.name,
    label: "Recall",
    description: RECALL.description,
    parameters: RECALL.input_schema,
    async execute(_: string, params: any, _signal: any, _update: any, ctx: any) {
      const text = await ask("Recall", ctx, { query: params.query })
      return { content: [{ type: "text", text: text || "Nothing was found." }], details: {} }
    },
  })
}

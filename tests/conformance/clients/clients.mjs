// Runs the npm clients against one base URL and prints what they make of it, one JSON line a case: node clients.mjs BASE [KEY [CASES]]
// What a server counts or invents anew is blanked; the rest is what a program that uses these clients would see.
import process from 'node:process'
import { Ollama } from 'ollama'
import OpenAI from 'openai'
import Anthropic from '@anthropic-ai/sdk'

const [base, key = 'none', only = ''] = process.argv.slice(2)
const ollama = new Ollama({ host: base, headers: { Authorization: `Bearer ${key}` } })
const openai = new OpenAI({ baseURL: `${base}/v1`, apiKey: key, maxRetries: 0 })
const anthropic = new Anthropic({ baseURL: base, apiKey: key, maxRetries: 0 })

const volatile = new Set([
  'created_at', 'total_duration', 'load_duration', 'prompt_eval_duration', 'eval_duration', 'created', 'completed_at', 'expires_at',
  'id', 'item_id', 'call_id', 'modified_at', 'request_id', 'requestID', '_request_id', 'parsed_arguments',
])

function normal(v, name) {
  if (volatile.has(name) && v !== null && v !== undefined) return '*'
  if (Array.isArray(v)) return v.map((e) => normal(e))
  if (v instanceof Date) return '*'
  if (v && typeof v === 'object') return Object.fromEntries(Object.keys(v).sort().map((k) => [k, normal(v[k], k)]))
  if ((name === 'parameters' || name === 'modelfile') && typeof v === 'string') return v.split('\n').sort().join('\n')
  if (name === 'arguments' && typeof v === 'string') return JSON.parse(v || '{}')
  return v
}

const failure = (e) => ({
  class: e.constructor.name, status: e.status ?? e.status_code, message: String(e.message).replace(/req_[\w-]+/g, '*'), error: e.error, type: e.type, code: e.code,
})

async function all(stream) {
  const out = []
  for await (const part of await stream) out.push(part)
  return out
}

// left reads some of a stream and leaves; what is thrown then is part of the answer.
async function left(stream, leave) {
  const s = await stream
  let n = 0
  try {
    for await (const part of s) if (++n === 5) leave(s)
  } catch (e) {
    return { after: n >= 5, class: e.constructor.name, name: e.name }
  }
  return { after: n >= 5, class: null }
}

const ask = (content) => [{ role: 'user', content }]
const weather = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] }
const tools = [{ type: 'function', function: { name: 'get_weather', description: 'd', parameters: weather } }]
const schema = { type: 'object', properties: { answer: { type: 'integer' }, unit: { type: 'string' } }, required: ['answer', 'unit'] }
const endless = { model: 'tiny:slow', messages: ask('#loop') }

const cases = {
  'ollama generate': () => ollama.generate({ model: 'tiny', prompt: 'hi' }),
  'ollama generate stream': () => all(ollama.generate({ model: 'tiny', prompt: 'hi', stream: true })),
  'ollama chat': () => ollama.chat({ model: 'tiny', messages: ask('hi') }),
  'ollama chat stream': () => all(ollama.chat({ model: 'tiny', messages: ask('#utf8'), stream: true })),
  'ollama tools': () => ollama.chat({ model: 'tiny-tools', messages: ask('#tool'), tools }),
  'ollama tools stream': () => all(ollama.chat({ model: 'tiny-tools', messages: ask('#tool'), tools, stream: true })),
  'ollama think': () => ollama.chat({ model: 'tiny-tools', messages: ask('#think'), think: true }),
  'ollama think stream': () => all(ollama.chat({ model: 'tiny-tools', messages: ask('#think'), think: true, stream: true })),
  'ollama json': () => ollama.chat({ model: 'tiny', messages: ask('#json'), format: 'json' }),
  'ollama schema': () => ollama.chat({ model: 'tiny', messages: ask('#json'), format: schema }),
  'ollama options': () => ollama.generate({ model: 'tiny', prompt: '#loop', options: { num_predict: 3 } }),
  'ollama embed': () => ollama.embed({ model: 'tiny-embed', input: ['a', 'b'] }),
  'ollama embeddings': () => ollama.embeddings({ model: 'tiny-embed', prompt: 'a' }),
  'ollama list': () => ollama.list(),
  'ollama show': () => ollama.show({ model: 'tiny-tools' }),
  'ollama version': () => ollama.version(),
  'ollama abort stream': () => left(ollama.chat({ ...endless, stream: true, options: { num_predict: 100000 } }), (s) => s.abort()),
  'ollama after the abort': () => ollama.chat({ model: 'tiny:slow', messages: ask('hi') }),
  'ollama missing': () => ollama.chat({ model: 'nope', messages: ask('hi') }),
  'ollama missing stream': () => all(ollama.generate({ model: 'nope', prompt: 'hi', stream: true })),
  'ollama missing show': () => ollama.show({ model: 'nope' }),
  'ollama missing embed': () => ollama.embed({ model: 'nope', input: 'a' }),
  'ollama bad name': () => ollama.chat({ model: 'a b', messages: ask('hi') }),
  'ollama no such capability': () => ollama.chat({ model: 'tiny', messages: ask('hi'), think: true }),

  'openai chat': () => openai.chat.completions.create({ model: 'tiny', messages: ask('hi') }),
  'openai chat stream': () => all(openai.chat.completions.create({ model: 'tiny', messages: ask('hi'), stream: true, stream_options: { include_usage: true } })),
  'openai tools': () => openai.chat.completions.create({ model: 'tiny-tools', messages: ask('#tool'), tools }),
  'openai tools stream': () => openai.chat.completions.stream({ model: 'tiny-tools', messages: ask('#tool'), tools }).finalChatCompletion(),
  'openai reasoning': () => openai.chat.completions.create({ model: 'tiny-tools', messages: ask('#think') }),
  'openai json': () => openai.chat.completions.create({ model: 'tiny', messages: ask('#json'), response_format: { type: 'json_object' } }),
  'openai schema': () => openai.chat.completions.create({
    model: 'tiny', messages: ask('#json'), response_format: { type: 'json_schema', json_schema: { name: 's', schema } },
  }),
  'openai completions': () => openai.completions.create({ model: 'tiny', prompt: 'hi' }),
  'openai completions stream': () => all(openai.completions.create({ model: 'tiny', prompt: 'hi', stream: true })),
  'openai embeddings': () => openai.embeddings.create({ model: 'tiny-embed', input: ['a', 'b'] }),
  'openai embeddings float': () => openai.embeddings.create({ model: 'tiny-embed', input: 'a', encoding_format: 'float' }),
  'openai models': () => all(openai.models.list()),
  'openai model': () => openai.models.retrieve('tiny'),
  'openai responses': () => openai.responses.create({ model: 'tiny', input: 'hi' }),
  'openai responses stream': () => all(openai.responses.create({ model: 'tiny', input: 'hi', stream: true })),
  'openai responses tool': () => openai.responses.create({
    model: 'tiny-tools', input: '#tool', tools: [{ type: 'function', name: 'get_weather', parameters: weather, strict: false }],
  }),
  'openai abort stream': () => left(openai.chat.completions.create({ ...endless, stream: true, max_tokens: 100000 }), (s) => s.controller.abort()),
  'openai abort': () => openai.chat.completions.create({ ...endless, max_tokens: 100000 }, { signal: AbortSignal.timeout(300) }),
  'openai after the abort': () => openai.chat.completions.create({ model: 'tiny:slow', messages: ask('hi') }),
  'openai missing': () => openai.chat.completions.create({ model: 'nope', messages: ask('hi') }),
  'openai missing stream': () => all(openai.chat.completions.create({ model: 'nope', messages: ask('hi'), stream: true })),
  'openai missing responses': () => all(openai.responses.create({ model: 'nope', input: 'hi', stream: true })),
  'openai missing model': () => openai.models.retrieve('nope'),
  'openai bad request': () => openai.chat.completions.create({ model: 'tiny', messages: [] }),

  'anthropic messages': () => anthropic.messages.create({ model: 'tiny', max_tokens: 50, messages: ask('hi') }),
  'anthropic messages stream': () => all(anthropic.messages.create({ model: 'tiny', max_tokens: 50, messages: ask('hi'), stream: true })),
  'anthropic final': () => anthropic.messages.stream({ model: 'tiny', max_tokens: 50, messages: ask('#utf8') }).finalMessage(),
  'anthropic beta': () => anthropic.beta.messages.create({ model: 'tiny', max_tokens: 50, messages: ask('hi') }),
  'anthropic tools': () => anthropic.messages.create({
    model: 'tiny-tools', max_tokens: 50, messages: ask('#tool'), tools: [{ name: 'get_weather', input_schema: weather }],
  }),
  'anthropic tools stream': () => anthropic.messages.stream({
    model: 'tiny-tools', max_tokens: 50, messages: ask('#tool'), tools: [{ name: 'get_weather', input_schema: weather }],
  }).finalMessage(),
  'anthropic thinking': () => anthropic.messages.create({
    model: 'tiny-tools', max_tokens: 50, messages: ask('#think'), thinking: { type: 'enabled', budget_tokens: 1024 },
  }),
  'anthropic max_tokens': () => anthropic.messages.create({ model: 'tiny', max_tokens: 3, messages: ask('#loop') }),
  'anthropic abort stream': () => left(anthropic.messages.create({ ...endless, stream: true, max_tokens: 100000 }), (s) => s.controller.abort()),
  'anthropic abort': () => anthropic.messages.create({ ...endless, max_tokens: 100000 }, { signal: AbortSignal.timeout(300), timeout: 60000 }),
  'anthropic after the abort': () => anthropic.messages.create({ model: 'tiny:slow', max_tokens: 50, messages: ask('hi') }),
  'anthropic missing': () => anthropic.messages.create({ model: 'nope', max_tokens: 50, messages: ask('hi') }),
  'anthropic missing stream': () => all(anthropic.messages.create({ model: 'nope', max_tokens: 50, messages: ask('hi'), stream: true })),
  'anthropic bad request': () => anthropic.messages.create({ model: 'tiny', messages: ask('hi') }),
  'anthropic empty': () => anthropic.messages.create({ model: 'tiny', max_tokens: 5, messages: [] }),

  'ollama load': () => ollama.generate({ model: 'tiny', prompt: '' }),
  'ollama ps': async () => {
    // A gateway hears of a load a moment later.
    for (const end = Date.now() + 10000; Date.now() < end; await new Promise((r) => setTimeout(r, 100))) {
      const { models } = await ollama.ps()
      if (models.some((m) => m.name === 'tiny:latest')) return Object.keys(models.find((m) => m.name === 'tiny:latest')).sort()
    }
    return null
  },
  'ollama unload': () => ollama.generate({ model: 'tiny', prompt: '', keep_alive: 0 }),
}

for (const [name, run] of Object.entries(cases)) {
  if (!new RegExp(only).test(name)) continue
  let line
  try {
    line = { name, result: normal(await run()) }
  } catch (e) {
    line = { name, failure: normal(failure(e)) }
  }
  console.log(JSON.stringify(line))
}

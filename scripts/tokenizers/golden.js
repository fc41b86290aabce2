// Writes what the tests of internal/gateway/tokens/bpe compare with: unicode.txt, the small tokenizers, the texts, and
// the ids and decoded texts that the reference implementation gives.
// Usage: golden.js <folder with the real tokenizers> <folder of the package>
'use strict'
const fs = require('fs')
const path = require('path')
const zlib = require('zlib')
const crypto = require('crypto')
const { Tokenizer } = require('tokenizers')
const cases = require('./cases.js')
const { classes } = require('./classes.js')
const tiny = require('./tiny.js')

const [real, pkg] = process.argv.slice(2)
const data = path.join(pkg, 'testdata')
const families = ['llama3_1', 'qwen3', 'deepseek_v3', 'gptoss', 'gemma3']
const splitters = ['llama3', 'qwen3', 'deepseek', 'o200k', 'gpt2']
const write = (name, text) => fs.writeFileSync(path.join(data, name), zlib.gzipSync(text, { level: 9 }))

// brief is the ids in full if they are few, else how many and a digest of them as little-endian words.
function brief (ids) {
  if (ids.length <= 16) return ids
  const b = Buffer.alloc(4 * ids.length)
  ids.forEach((id, i) => b.writeUInt32LE(id, 4 * i))
  return ids.length + ':' + crypto.createHash('sha256').update(b).digest('hex').slice(0, 8)
}
const digest = (text) => text.length <= 40 ? text : ':' + crypto.createHash('sha256').update(text).digest('hex').slice(0, 8)

// golden has one line for each text: ids and decoded text; then lines of texts of its own, then lists of ids.
async function golden (name, tokenizerFile, texts) {
  const t = Tokenizer.fromString(tokenizerFile)
  const lines = []
  const encode = async (text, special) => (await t.encode(text, null, { addSpecialTokens: special })).getIds()
  for (const text of texts) {
    const ids = await encode(text, true)
    lines.push(JSON.stringify({ i: brief(ids), d: digest(await t.decode(ids, true)) }))
  }
  const r = cases.rng(7)
  const tokens = JSON.parse(tokenizerFile).added_tokens
  const some = tokens.length <= 24 ? tokens : tokens.filter((_, i) => i < 8 || i >= tokens.length - 6 || r() < 10 / tokens.length)
  for (const { content } of some) {
    for (const text of cases.added(content)) lines.push(JSON.stringify({ t: text, i: brief(await encode(text, true)), n: brief(await encode(text, false)) }))
  }
  const size = t.getVocabSize(true)
  for (let k = 0; k < 200; k++) {
    const ids = []
    for (let n = Math.floor(r() * 12); n >= 0; n--) ids.push(Math.floor(r() * (size + 3)))
    lines.push(JSON.stringify({ l: ids, d: await t.decode(ids, false), s: await t.decode(ids, true) }))
  }
  write(name + '.jsonl.gz', lines.join('\n') + '\n')
  console.log(name, lines.length)
}

// splits has the lengths in bytes of the words that a pre-tokenizer makes of each text. The ids of a small vocabulary show
// few of the splits: where it has no token across a place, it does not matter whether a word ends there.
function splits (name, tokenizerFile, texts) {
  const pre = Tokenizer.fromString(tokenizerFile).getPreTokenizer()
  // A byte-level word has one character for each byte.
  const lines = texts.map((s) => JSON.stringify(brief(s === '' ? [] : pre.preTokenizeString(s).map(([w]) => [...w].length))))
  write('split-' + name + '.jsonl.gz', lines.join('\n') + '\n')
  console.log('split', name, lines.length)
}

async function main () {
  fs.mkdirSync(data, { recursive: true })
  fs.writeFileSync(path.join(pkg, 'unicode.txt'), await classes())
  const read = (name) => fs.readFileSync(path.join(real, name + '.json'), 'utf8')
  const regexes = (name) => JSON.parse(read(name)).pre_tokenizer.pretokenizers.filter((p) => p.type === 'Split').map((p) => p.pattern.Regex)
  const texts = [...cases.targeted(), ...cases.random(3000)]
  const long = cases.multilingual(200000)
  const samples = ['code', 'prose'].map((name) => zlib.gunzipSync(fs.readFileSync(path.join(data, name + '.txt.gz'))).toString())
  texts.push(long)
  write('texts.json.gz', JSON.stringify(texts))
  const everything = [...texts, ...samples, ...cases.everyCharacter()]
  const small = tiny.build({ llama3: regexes('llama3_1')[0], qwen3: regexes('qwen3')[0], gptoss: regexes('gptoss')[0], deepseek: regexes('deepseek_v3') })
  // The small ones take every third text: they are there for the code paths, and for every machine.
  for (const [name, file] of Object.entries(small)) {
    const text = JSON.stringify(file)
    write('tiny-' + name + '.json.gz', text)
    await golden('tiny-' + name, text, texts.filter((s, i) => i % 3 === 0 && s.length < 5000))
    if (splitters.includes(name)) splits(name, text, texts.filter((s) => s.length < 5000))
  }
  if (process.env.ONLY_SMALL) return
  for (const name of families) await golden(name, read(name), everything)
}
main()

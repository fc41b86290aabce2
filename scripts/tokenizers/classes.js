// The character classes that the reference implementation's own regular expressions see, as runs of code points.
'use strict'
const { Tokenizer } = require('tokenizers')

const model = { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null,
  fuse_unk: false, byte_fallback: false, ignore_merges: false, vocab: { X: 0 }, merges: [] }
const file = (more) => JSON.stringify({ version: '1.0', truncation: null, padding: null, added_tokens: [],
  normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, model, ...more })

// The code points that are scalar values, in chunks, for the binding copies each string several times.
const chunks = []
for (let lo = 0; lo < 0x110000; lo += 4096) {
  const chunk = []
  for (let c = lo; c < lo + 4096; c++) if (c < 0xd800 || c > 0xdfff) chunk.push(c)
  if (chunk.length) chunks.push(chunk)
}

// matching: which code points the pattern matches, by removing those that it matches.
function matching (pattern) {
  const pre = Tokenizer.fromString(file({ pre_tokenizer:
    { type: 'Split', pattern: { Regex: pattern }, behavior: 'Removed', invert: false } })).getPreTokenizer()
  const hit = new Uint8Array(0x110000)
  for (const chunk of chunks) {
    for (const c of chunk) hit[c] = 1
    for (const [piece] of pre.preTokenizeString(String.fromCodePoint(...chunk))) {
      for (const ch of piece) hit[ch.codePointAt(0)] = 0
    }
  }
  return hit
}

// classes returns the text of unicode.txt.
async function classes () {
  const names = [['u', '\\p{Lu}|\\p{Lt}'], ['l', '\\p{Ll}'], ['o', '\\p{Lm}|\\p{Lo}'], ['m', '\\p{M}'], ['n', '\\p{N}'],
    ['p', '\\p{P}'], ['s', '\\p{S}'], ['w', '\\s']]
  const hits = names.map(([, p]) => matching(p))
  const L = matching('\\p{L}')
  const word = await single()
  const of = (c) => {
    let s = ''
    names.forEach(([n], i) => { if (hits[i][c]) s += n })
    if (L[c] !== (/[ulo]/.test(s) ? 1 : 0)) throw new Error('L is not Lu Lt Ll Lm Lo at ' + c)
    return (s || '-') + (word[c] ? '+' : '')
  }
  let last = ''
  let text = ''
  for (let c = 0; c < 0x110000; c++) {
    const k = c >= 0xd800 && c <= 0xdfff ? '-' : of(c)
    if (k !== last) text += c.toString(16) + ' ' + k + '\n'
    last = k
  }
  return text
}

// single: which code points are word characters to the rule of added tokens with single_word (another regex library).
// The token X follows each character; it is found where the character is none. The model drops what it does not know.
async function single () {
  const t = Tokenizer.fromString(file({ added_tokens: [{ id: 1, content: 'X', single_word: true, lstrip: false, rstrip: false, normalized: false, special: false }],
    model: { ...model, vocab: { '\n': 0 } } }))
  const hit = new Uint8Array(0x110000)
  for (const chunk of chunks) {
    for (const c of chunk) hit[c] = 1
    const text = chunk.map((c) => '\n' + String.fromCodePoint(c) + 'X').join('')
    const ids = (await t.encode(text)).getIds()
    let i = 0
    for (const c of chunk) {
      if (ids[i++] !== 0) throw new Error('lost at ' + c)
      if (c === 10) i++ // itself
      if (ids[i] === 1) { hit[c] = 0; i++ }
    }
  }
  return hit
}
module.exports = { classes, file }

// Small tokenizers with the settings of the real kinds, and some with settings that no real one has. Their vocabularies
// are trained here, on the texts of cases.js: they are free of any model's licence, and can be committed.
'use strict'
const { Tokenizer } = require('tokenizers')
const cases = require('./cases.js')

const english = `The router keeps a conversation on the engine that holds its blocks, unless that engine is too busy.
It wasn't obvious at first that they'd need it; we've seen what happens without, and I'll show you why it isn't free.
for (int i = 0; i < 10; i++) { printf("%d\\n", values[i]); }  // the usual loop
func (s *Server) Serve(ctx context.Context) error {\n\tif err := s.listen(ctx); err != nil {\n\t\treturn err\n\t}\n\treturn nil\n}
SELECT name, count(*) FROM requests WHERE status >= 400 GROUP BY name ORDER BY 2 DESC LIMIT 100;
{"model": "m", "messages": [{"role": "user", "content": "Hello, world! 12345"}], "temperature": 0.7}
`.repeat(30)

const corpus = () => english + cases.random(600).join('\n') + cases.multilingual(20000)

// byteChar gives the character of a byte in a byte-level vocabulary.
const byteChar = (() => {
  const list = []
  let next = 256
  for (let b = 0; b < 256; b++) list.push(String.fromCodePoint((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : next++))
  return (b) => list[b]
})()

// train merges the most frequent pair n times, over words (a map from a word to its count).
function train (words, symbols, n) {
  const list = [...words].map(([w, count]) => ({ syms: [...w], count }))
  const merges = []
  const vocab = new Set(symbols)
  while (merges.length < n) {
    const pairs = new Map()
    for (const { syms, count } of list) {
      for (let i = 1; i < syms.length; i++) {
        const k = syms[i - 1] + '\u0000' + syms[i]
        pairs.set(k, (pairs.get(k) || 0) + count)
      }
    }
    let best = ''
    for (const [k, c] of pairs) if (best === '' || c > pairs.get(best) || (c === pairs.get(best) && k < best)) best = k
    if (best === '' || pairs.get(best) < 2) break
    const [a, b] = best.split('\u0000')
    merges.push([a, b])
    vocab.add(a + b)
    for (const w of list) {
      for (let i = 0; i + 1 < w.syms.length; i++) if (w.syms[i] === a && w.syms[i + 1] === b) w.syms.splice(i, 2, a + b)
    }
  }
  return { vocab, merges }
}

const split = (regex) => ({ type: 'Split', pattern: { Regex: regex }, behavior: 'Isolated', invert: false })
const byteLevel = (useRegex) => ({ type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: useRegex })
const sequence = (...list) => ({ type: 'Sequence', pretokenizers: list })
const added = (content, more) => ({ content, single_word: false, lstrip: false, rstrip: false, normalized: false, special: false, ...more })

// file puts a tokenizer.json together; the ids of added tokens follow those of the vocabulary.
function file ({ vocab, merges, tokens = [], strings = false, model = {}, ...parts }) {
  const ids = {}
  for (const t of vocab) ids[t] = Object.keys(ids).length
  let next = Object.keys(ids).length
  return { version: '1.0', truncation: null, padding: null,
    added_tokens: tokens.map((t) => ({ id: ids[t.content] ?? next++, ...t })),
    normalizer: null, pre_tokenizer: null, post_processor: null, decoder: null, ...parts,
    model: { type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null, end_of_word_suffix: null, fuse_unk: false, byte_fallback: false,
      ignore_merges: false, vocab: ids, merges: strings ? merges.map((p) => p.join(' ')) : merges, ...model } }
}

// words counts what a pre-tokenizer makes of the corpus.
function words (preTokenizer, text) {
  const t = Tokenizer.fromString(JSON.stringify(file({ vocab: ['a'], merges: [], pre_tokenizer: preTokenizer })))
  const count = new Map()
  for (const line of text.split(/(?<=\n\n)/)) {
    for (const [w] of t.getPreTokenizer().preTokenizeString(line)) count.set(w, (count.get(w) || 0) + 1)
  }
  return count
}

const template = (id, token) => ({ type: 'TemplateProcessing', single: [{ SpecialToken: { id: token, type_id: 0 } }, { Sequence: { id: 'A', type_id: 0 } }],
  pair: [{ Sequence: { id: 'A', type_id: 0 } }, { Sequence: { id: 'B', type_id: 1 } }], special_tokens: { [token]: { id: token, ids: [id], tokens: [token] } } })

function shuffled (list, seed) {
  const r = cases.rng(seed)
  const a = [...list]
  for (let i = a.length - 1; i > 0; i--) {
    const j = Math.floor(r() * (i + 1));
    [a[i], a[j]] = [a[j], a[i]]
  }
  return a
}

// build returns name -> tokenizer.json; patterns are those of the real files, by family.
function build (patterns) {
  const text = corpus()
  const bytes = [...Array(256).keys()].map(byteChar)
  const decoder = { type: 'ByteLevel', add_prefix_space: true, trim_offsets: true, use_regex: true }
  const special = [added('<|begin|>', { special: true }), added('<|end|>', { special: true }), added('<think>'), added('<|end|>x')]
  const out = {}
  const bl = (pre, n = 700) => train(words(pre, text), bytes, n)

  const llama = sequence(split(patterns.llama3), byteLevel(false))
  const l = bl(llama)
  // A token that no merge leads to: with ignore_merges it is found all the same.
  out.llama3 = file({ ...l, vocab: [...l.vocab, byteChar(32) + 'unreachable', 'xyzzy'], strings: true, tokens: special, pre_tokenizer: llama, decoder, model: { ignore_merges: true },
    post_processor: { type: 'Sequence', processors: [{ ...byteLevel(true) }, template(l.vocab.size + 2, '<|begin|>')] } })
  const qwen = sequence(split(patterns.qwen3), byteLevel(false))
  const q = bl(qwen)
  out.qwen3 = file({ ...q, vocab: [...q.vocab, byteChar(32) + 'unreachable', 'xyzzy'], tokens: special, normalizer: { type: 'NFC' }, pre_tokenizer: qwen, decoder, post_processor: byteLevel(false), model: { continuing_subword_prefix: '', end_of_word_suffix: '' } })
  const deep = sequence(...patterns.deepseek.map(split), byteLevel(false))
  out.deepseek = file({ ...bl(deep), strings: true, tokens: special, normalizer: { type: 'Sequence', normalizers: [] }, pre_tokenizer: deep, decoder })
  const o200k = sequence(split(patterns.gptoss), byteLevel(false))
  out.o200k = file({ ...bl(o200k), tokens: special, pre_tokenizer: o200k, decoder, model: { ignore_merges: true } })
  out.gpt2 = file({ ...bl(byteLevel(true)), strings: true, pre_tokenizer: byteLevel(true), decoder })

  // Ranks that have nothing to do with how the tokens came about: the order of merging shows in every word.
  out.shuffled = file({ vocab: l.vocab, merges: shuffled(l.merges, 1), pre_tokenizer: llama, decoder })
  out.oneword = file({ vocab: l.vocab, merges: shuffled(l.merges, 2), pre_tokenizer: byteLevel(false), decoder })
  // Bytes that the vocabulary lacks: dropped, or unknown one by one or together.
  const few = [...l.vocab].filter((t) => !/[\u0100-\u0143zqXQ'7\u00e3]/.test(t) || t === byteChar(32))
  const fewMerges = l.merges.filter((p) => few.includes(p[0]) && few.includes(p[1]) && few.includes(p[0] + p[1]))
  out.dropped = file({ vocab: few, merges: fewMerges, pre_tokenizer: llama, decoder })
  out.unknown = file({ vocab: [...few, '?!'], merges: fewMerges, pre_tokenizer: llama, decoder, model: { unk_token: '?!' } })
  out.unknownfused = file({ vocab: [...few, '?!'], merges: fewMerges, pre_tokenizer: byteLevel(false), decoder, model: { unk_token: '?!', fuse_unk: true } })

  out.added = addedRules({ vocab: [...l.vocab], merges: l.merges, pre_tokenizer: llama, decoder, normalizer: { type: 'NFC' } })
  gemmas(out, text)
  return out
}

// addedRules has a token for each rule, and some that meet.
function addedRules (parts) {
  return file({ ...parts, tokens: [
    added('<l>', { lstrip: true }), added('<r>', { rstrip: true }), added('<lr>', { lstrip: true, rstrip: true, special: true }), added('<w>', { single_word: true }),
    added('word', { single_word: true, normalized: true }), added('wlr', { single_word: true, lstrip: true, rstrip: true }), added('nrm', { normalized: true }),
    added('\u00e9\u00e9', { normalized: true }), added('e\u0301x', { normalized: true }), added('e\u0301y'), added('<|a|>'), added('<|a|>b'), added('|>'), added(' sp', { rstrip: true }),
    added('  ', { lstrip: true, rstrip: true }), added('\n\n', { normalized: true, rstrip: true }), added('the', { single_word: true, lstrip: true }), added('日本', { lstrip: true }), added('\u00e9', { special: true }),
    added('lrn', { lstrip: true, rstrip: true, normalized: true, special: true })] })
}

// gemmas are the tokenizers over characters.
function gemmas (out, text) {
  const marked = text.replaceAll(' ', '▁')
  const count = new Map()
  for (const w of marked.split(/(?=▁)|(?<=\n)/)) count.set(w, (count.get(w) || 0) + 1)
  const seen = new Map()
  for (const c of marked) seen.set(c, (seen.get(c) || 0) + 1)
  const chars = [...seen].filter(([, n]) => n > 3).map(([c]) => c)
  const fallback = [...Array(256).keys()].map((b) => '<0x' + b.toString(16).toUpperCase().padStart(2, '0') + '>')
  const g = train(count, ['<pad>', '<bos>', '<unk>', ...fallback, ...chars], 700)
  const vocab = [...g.vocab, '▁▁', '▁▁▁', '▁▁▁▁', '▁</', '>▁</', '\n\n', '\n\n\n'].filter((t, i, a) => a.indexOf(t) === i)
  const merges = [...g.merges, ['<', '/'], ['▁', '▁'], ['▁▁', '▁▁'], ['▁▁', '▁'], ['▁', '</'], ['>', '▁</'], ['\n', '\n'], ['\n\n', '\n']].filter(([a, b]) => vocab.includes(a) && vocab.includes(b) && vocab.includes(a + b))
  const replace = { type: 'Replace', pattern: { String: ' ' }, content: '▁' }
  const pre = { type: 'Split', pattern: { String: ' ' }, behavior: 'MergedWithPrevious', invert: false }
  const decoder = { type: 'Sequence', decoders: [{ type: 'Replace', pattern: { String: '▁' }, content: ' ' }, { type: 'ByteFallback' }, { type: 'Fuse' }] }
  const tokens = [added('<bos>', { special: true }), added('<unk>', { special: true }), added('▁▁'), added('▁▁▁'), added('\n\n'), added('<table>'), added('\t')]
  const unk = { unk_token: '<unk>', fuse_unk: true, byte_fallback: true }
  out.gemma = file({ vocab, merges, tokens, normalizer: replace, pre_tokenizer: pre, decoder, post_processor: template(1, '<bos>'), model: unk })
  out.gemmanormalized = file({ vocab, merges, tokens: [added('a b', { normalized: true }), added('x▁y', { normalized: true }), added(' z ', { normalized: true, single_word: true })],
    normalizer: { type: 'Sequence', normalizers: [replace, { type: 'NFC' }] }, decoder: { type: 'Sequence', decoders: [{ type: 'Strip', content: '▁', start: 1, stop: 0 }, { type: 'ByteFallback' }, { type: 'Fuse' }] }, model: unk })
  const part = vocab.filter((t) => !/^<0x[9C][0-9A-F]>$/.test(t))
  out.gemmapart = file({ vocab: part, merges: shuffled(merges, 3), normalizer: replace, pre_tokenizer: pre, decoder, model: unk })
  out.gemmaunk = file({ vocab, merges, normalizer: replace, pre_tokenizer: pre, model: { unk_token: '<unk>', fuse_unk: false, byte_fallback: false } })
  out.gemmadrop = file({ vocab, merges: shuffled(merges, 4), normalizer: replace, pre_tokenizer: pre, decoder })
  out.gemmaignore = file({ vocab, merges, decoder, model: { ...unk, ignore_merges: true } })
}

module.exports = { build }

// The texts that the golden ids are of. Everything is drawn from a generator with a fixed seed, so that a second run
// writes the same file.
'use strict'

// rng is mulberry32.
function rng (seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}
const r = rng(20260117)
const int = (n) => Math.floor(r() * n)
const pick = (list) => list[int(list.length)]

const contractions = ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'S", "'T", "'RE", "'VE", "'M", "'LL", "'D", "'Re", "'rE", "'lL",
  "'\u017f", "'\u017fa", "'\u0161", "'\u015f", "'\u013f", '\u2019s', "'x", "'", "''s", "'r", "'l", "'v", "'R", "'\u212a", "'\u0131"]
const spaces = [' ', '  ', '   ', '\t', '\n', '\r\n', '\n\n', '\r', ' \n', '\n ', '\t\t', '\u00a0', '\u3000', '\u2028', '\u0085', '\v', '\f',
  '\u200b', '\ufeff', '\u1680', '\u202f', '\u180e', '\u001c', '\u001f']
const words = ['the', 'The', 'THE', 'straße', 'naïve', 'CamelCaseWord', 'HTTPServer', 'iPhone', 'ǅungla', 'ʰx', 'ªº', 'int32', 'x86_64', 'déjà',
  'e\u0301te\u0301', 'A\u030a', '\u212b', '\u2126', '\u1e9b\u0323', '한국어', '\u1112\u1161\u11ab', '日本語', 'ひらがな', 'カタカナ・テスト', '漢字かな交じり文',
  '中文字符', '繁體', '\u9fa6\u9fff', '\u3007', 'ไทยทดสอบ', 'สวัสดี', 'नमस्ते', '\u0958', 'हिन्दी', 'עברית', 'שלום', 'العربية', 'مرحبا', 'русский', 'Ελληνικά', 'ქართული',
  '\u{10400}\u{10428}', '\u{1d400}', 'ﬁ', 'ﬆ', 'ß', 'İ', 'ı', 'ŉ', '①', '½', '²', 'Ⅷ', '٣٤٥', '१२३', '𝟘𝟙', '🙂', '👨‍👩‍👧‍👦', '🇩🇪🇫🇷', '👍🏽', '❤️', '☃', '─┼', '€', '°C']
const signs = ['.', ',', '...', '!', '?!', '()', '(', ')', '[', ']]', '{', '}', '/', '//', '/*', '*/', '\\', '|', '||', '&&', '==', '=>', '->', '<', '>', '</', '_', '__', '-', '--', '—', '“', '”',
  '`', '```', '~', '@', '#', '##', '$', '%', '^', '+', '++', ';', ':', '::', '。', '，', '、', '！', '・', '「', '」', '￥', '¿', '«', '№', '\u0301', '\u0308\u0301', '\u3099', '\u0000', '\u0001', '\u007f', '\ue000', '\ufffd', '\uffff', '\u{10ffff}', '\u0378']
const digits = ['0', '12', '123', '1234', '12345', '123456', '1234567', '3.14', '1,000', '٣', '０１２３', '1e9', '0x1F', '12a34', '²³¹¼']

// addedTexts are written around each added token of interest.
function added (token) {
  const t = token
  return [t, t + t, 'a' + t + 'b', 'a ' + t + ' b', ' ' + t + ' ', '  ' + t + '  ', '\n' + t + '\n', 'x\t \n' + t + ' \r\n y', t + "'s", t + '\u0301', 'e' + t + '\u0301', '_' + t + '_', '1' + t + '2', '日' + t + '本',
    t.slice(0, -1), t.slice(1), t.slice(0, -1) + t, t.slice(0, 2) + t + t.slice(-2), t.toUpperCase(), 'a \u00a0\u3000' + t + '\u2003 b', ' ' + t + ' ' + t + '  ' + t, t + ' ' + 'the' + ' ' + t + '.']
}

// targeted are the cases that random text misses.
function targeted () {
  const list = ['', ' ', '\n', 'a', 'Hello, world!', 'Hello WE\'RE he\'Ll', "'", "''", "'s"]
  for (const c of contractions) list.push(c, 'I' + c, 'I' + c + 'abc', 'WE' + c + 'ABC', ' ' + c + ' x', '1' + c + 'z', '中' + c + 'z', '.' + c, '\n' + c + 'a', c + c)
  for (const d of digits) list.push(d, ' ' + d, 'a' + d, d + 'a', d + ' ' + d, d + '\n', '-' + d, '日' + d + '本', '  ' + d, "'" + d)
  for (const a of spaces) {
    for (const b of spaces) list.push('x' + a + b + 'y', a + b, '.' + a + b + '.')
    list.push(a + '1', a + 'é', a + '\u0301', '日' + a + '本', 'x' + a, 'x' + a.repeat(5) + '!', 'x' + a.repeat(40) + 'y', a.repeat(100))
  }
  for (const w of words) list.push(w, ' ' + w, w + w, w + '.', '(' + w + ')', w.toUpperCase(), '\u0001' + w, w + '\u0301', '\u0301' + w, '日' + w, w + '日', '1' + w, w + '\n\n')
  for (const s of signs) list.push(s, ' ' + s, s + 'a', 'a' + s + 'b', s + '\n\n', ' ' + s + '/\n/', s + ' ', s + '1', s + '日', '日' + s, s + s + s, 'é' + s + 'É')
  for (let a = 0; a < 128; a++) {
    // All pairs of ASCII characters, 128 to a text; each stands between letters, so that none hides another.
    let s = ''
    for (let b = 0; b < 128; b++) s += String.fromCharCode(a, b) + (b % 2 ? 'q' : 'Q')
    list.push(s)
  }
  list.push('a'.repeat(10000), 'ab'.repeat(5000), ' '.repeat(10000), '\n'.repeat(3000), '日'.repeat(3000), '1'.repeat(5000), '!'.repeat(5000), 'aB'.repeat(3000), '\u0301'.repeat(200), 'e' + '\u0301\u0323'.repeat(60) + 'x',
    'a' + '\u0327\u0301\u0316'.repeat(20), '\u1100\u1161\u11a8'.repeat(50), '🙂'.repeat(500), '\u0000'.repeat(500), 'x'.repeat(30) + ' ' + 'y'.repeat(31) + ' ' + 'z'.repeat(65) + ' ' + 'lorem'.repeat(13))
  for (let n = 1; n < 80; n++) list.push('ab c'.repeat(n).slice(0, n) + '\u0301'.repeat(n % 40))
  for (const s of ['<0x41>', '<0xFF>', '<unk>', '▁', '▁▁', '▁the', ' ▁ the▁', 'Ġ', 'Ġthe', 'Ċ', '<s>', '</s>', '<|endoftext|>', '<|im_start|>user\nhi<|im_end|>\n', '<think>\n\n</think>\n\n', '<start_of_turn>user\n', '[INST]', '<bos><eos>',
    '<｜User｜>hi<｜Assistant｜>', '<|start|>assistant<|channel|>final<|message|>ok<|return|>', '<table><tr><td>1</td></tr></table>', '<unused12>', '\t\t\t\t\tx', '\n\n\n\n\nx']) list.push(s, 'a' + s + 'b', s + s, ' ' + s + ' ')
  return list
}

// character draws from the whole of Unicode, mostly from where text is.
function character () {
  switch (int(9)) {
    case 0: case 1: return String.fromCharCode(32 + int(95))
    case 2: return String.fromCharCode(int(128))
    case 3: return String.fromCodePoint(0x80 + int(0x500))
    case 4: return String.fromCodePoint(0x580 + int(0x1a80))
    case 5: return String.fromCodePoint(0x2000 + int(0x1000))
    case 6: return String.fromCodePoint(0x3000 + int(0xa800))
    case 7: return String.fromCodePoint(0x10000 + int(0x20000))
    default: { const c = int(0x110000); return c >= 0xd800 && c <= 0xdfff ? '\ud7a3' : String.fromCodePoint(c) }
  }
}

function random (n) {
  const list = []
  for (let i = 0; i < n; i++) {
    let s = ''
    for (let k = 1 + int(12); k > 0; k--) {
      switch (int(8)) {
        case 0: s += pick(contractions); break
        case 1: s += pick(spaces); break
        case 2: case 3: s += pick(words); break
        case 4: s += pick(signs); break
        case 5: s += pick(digits); break
        case 6: s += ' ' + pick(words); break
        default: for (let j = int(4); j >= 0; j--) s += character()
      }
    }
    list.push(s)
  }
  return list
}

// everyCharacter has each scalar value twice, between letters and after a space: the drift between Unicode tables.
function everyCharacter () {
  const list = []
  for (let lo = 0; lo < 0x110000; lo += 2048) {
    let s = ''
    for (let c = lo; c < lo + 2048; c++) if (c < 0xd800 || c > 0xdfff) s += 'a' + String.fromCodePoint(c) + 'A ' + String.fromCodePoint(c)
    list.push(s)
  }
  return list
}

// multilingual is a long text of invented words of many scripts.
function multilingual (bytes) {
  const scripts = [[0x61, 26], [0x61, 26], [0xe0, 30], [0x3b1, 25], [0x430, 32], [0x5d0, 27], [0x627, 36], [0x905, 50], [0xe01, 46], [0x3041, 80], [0x30a1, 80], [0x4e00, 3000], [0xac00, 3000], [0x10d0, 33]]
  let s = ''
  let n = 0
  while (n < bytes) {
    const [lo, many] = pick(scripts)
    let w = ''
    for (let k = 1 + int(9); k > 0; k--) w += String.fromCodePoint(lo + int(many))
    w += pick([' ', ' ', ' ', ' ', ', ', '. ', '.\n', '\n\n', '。', '、', ' ' + int(3000) + ' ', '🙂 ', '! ', "'s ", ' (', ') '])
    s += w
    n += Buffer.byteLength(w)
  }
  return s
}

module.exports = { rng, targeted, added, random, everyCharacter, multilingual }

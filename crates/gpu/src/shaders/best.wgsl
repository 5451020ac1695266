// The best tokens of a row of logits: what `best_chunks.wgsl` and `best_join.wgsl` share.
//
// A row is cut into groups of 64 chunks, and the tokens of a group are dealt out to its chunks one by one.
// Of each chunk and of each group the best token is kept, so that the next one is found by looking at
// one chunk and one group, whatever the length of the row.

struct Params {
    vocab: u32,
    // Tokens that the model can read.
    readable: u32,
}

// The first row of what is found in this pass.
var<immediate> first_row: u32;
@group(0) @binding(1) var<storage, read> logits: array<u32>;

// Tokens of a chunk, and chunks of a group.
const CHUNK: u32 = 64u;
const CHUNKS: u32 = 64u;
const GROUP: u32 = CHUNK * CHUNKS;
// A token and a key that orders it: larger is better, of equal ones the lower id.
const NOTHING: vec2<u32> = vec2(0u, 0xffffffffu);

// What `leaders` has of a row: chunks' best tokens, groups' best, groups' sums of exponentials.
const WIDTH: u32 = (CHUNKS + 2u) * GROUPS;
fn chunk_at(row: u32, group: u32, chunk: u32) -> u32 {
    return row * WIDTH + group * CHUNKS + chunk;
}
fn group_at(row: u32, group: u32) -> u32 { return row * WIDTH + CHUNKS * GROUPS + group; }
fn sum_at(row: u32, group: u32) -> u32 { return group_at(row, group) + GROUPS; }

// The bits of a logit as an integer that orders it. What is no number or plus infinity comes first, and
// minus infinity is nothing. It is done by integers alone: comparing floats need not honour any of that.
fn key_of(bits: u32) -> u32 {
    let size = bits & 0x7fffffffu;
    if size >= 0x7f800000u {
        return select(0xffffffffu, 0u, bits == 0xff800000u);
    }
    if size == 0u {
        return 0x80000000u;
    }
    return select(bits | 0x80000000u, ~bits, bits > 0x7fffffffu);
}

// The logit of a key, but for infinities; of nothing, one that adds nothing to a sum.
fn logit_of(key: u32) -> f32 {
    if key == 0u || key == 0xffffffffu {
        return select(-3.4e38, 3.4e38, key != 0u);
    }
    return bitcast<f32>(select(~key, key & 0x7fffffffu, key >= 0x80000000u));
}

fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let second = b.x > a.x || (b.x == a.x && b.y < a.y);
    return select(a, b, second);
}

fn token_at(row: u32, id: u32) -> vec2<u32> {
    let bits = logits[row * params.vocab + min(id, params.vocab - 1u)];
    return select(NOTHING, vec2(key_of(bits), id), id < params.vocab);
}

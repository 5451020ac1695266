// Between a layer's pages and the order of a KvBlock: (2, heads, tokens, head_dim), keys before
// values, two features in a word. Grid: pairs of features / 64, tokens, heads.

struct Params {
    kv_heads: u32,
    head_dim: u32,
    chunks: u32,
    // Tokens of the block, and the position of the first in its sequence.
    tokens: u32,
    first: u32,
    // Whether the block is written to the pages.
    store: u32,
}

var<immediate> params: Params;
// Pages of the sequence.
@group(0) @binding(0) var<storage, read> table: array<u32>;
@group(0) @binding(1) var<storage, read_write> block: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> values: array<u32>;

const PAGE: u32 = 64u;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let pairs = params.head_dim / 2u;
    let pair = id.x;
    if pair >= 4u * params.chunks {
        return;
    }
    let at = params.first + id.y;
    let inside = at % PAGE;
    let page = (table[at / PAGE] * params.kv_heads + id.z) * params.chunks * PAGE;
    let key = 4u * (page + (pair / 4u) * PAGE + inside) + pair % 4u;
    let value = 4u * (page + inside * params.chunks) + pair;
    if pair >= pairs {
        // The padding of a head is zero.
        if params.store != 0u {
            keys[key] = 0u;
            values[value] = 0u;
        }
        return;
    }
    let source = (id.z * params.tokens + id.y) * pairs + pair;
    let half = params.kv_heads * params.tokens * pairs;
    if params.store != 0u {
        keys[key] = block[source];
        values[value] = block[half + source];
    } else {
        block[source] = keys[key];
        block[half + source] = values[value];
    }
}

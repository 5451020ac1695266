// Attention of single tokens, one of each sequence, as they come from the projections: what heads.wgsl
// does to heads is done here, and keys and values are stored by those whose part they end. See
// attention_part.wgsl.

@group(0) @binding(2) var<storage, read> new_keys: array<f32>;
@group(0) @binding(3) var<storage, read> new_values: array<f32>;
// As in heads.wgsl.
@group(0) @binding(4) var<storage, read> gains: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<vec2<f32>>;
// Of each token, head and part: sums of values, and the largest score with the sum of weights.
@group(0) @binding(6) var<storage, read_write> sums: array<f32>;
@group(0) @binding(7) var<storage, read_write> extremes: array<vec2<f32>>;
@group(0) @binding(8) var<storage, read_write> keys: array<vec4<u32>>;
@group(0) @binding(9) var<storage, read_write> values: array<u32>;

// ALL is the query heads, then the key, then the value.
const WIDTH: u32 = 256u;
// Threads that add up a head's squares.
const TEAM: u32 = 8u;
var<workgroup> head: array<f32, ALL * WIDTH>;
var<workgroup> squares: array<f32, THREADS>;

fn feature_of(share: Share, h: u32, i: u32) -> f32 {
    let n = params.head_dim;
    if i >= n || (h < HEADS && h >= share.heads) {
        return 0.0;
    }
    if h < HEADS {
        let at = share.row * params.q_stride + params.q_offset;
        return queries[at + (share.first_head + h) * n + i];
    }
    if h == HEADS {
        return new_keys[share.row * params.k_stride + params.k_offset + share.kv_head * n + i];
    }
    return new_values[share.row * params.v_stride + params.v_offset + share.kv_head * n + i];
}

// Norm of the queries and the key.
fn normalise(thread: u32) {
    let n = params.head_dim;
    let h = thread / TEAM;
    var sum = 0.0;
    if h <= HEADS {
        for (var i = thread % TEAM; i < n; i += TEAM) {
            sum += head[h * WIDTH + i] * head[h * WIDTH + i];
        }
    }
    squares[thread] = sum;
    workgroupBarrier();
    for (var i = thread; i < (HEADS + 1u) * n; i += THREADS) {
        let h = i / n;
        let is_key = h == HEADS;
        if select(params.q_norm, params.k_norm, is_key) != 0u {
            var all = 0.0;
//each T 8
            all += squares[h * TEAM + T];
//end
            let eps = select(params.q_eps, params.k_eps, is_key);
            let gain = gains[select(0u, n, is_key) + i % n];
            head[h * WIDTH + i % n] *= gain / sqrt(all / f32(n) + eps);
        }
    }
    workgroupBarrier();
}

// Rotation of the queries and the key.
fn rotate(position: u32, thread: u32) {
    let pairs = max(params.q_pairs, params.k_pairs);
    for (var i = thread; i < (HEADS + 1u) * pairs; i += THREADS) {
        let h = i / pairs;
        let pair = i % pairs;
        if select(params.q_pairs, params.k_pairs, h == HEADS) != 0u {
            let low = angles[(position & 255u) * pairs + pair];
            let high = angles[(256u + (position >> 8u)) * pairs + pair];
            let cosine = (low.x * high.x - low.y * high.y) * params.magnitude;
            let sine = (low.y * high.x + low.x * high.y) * params.magnitude;
            let is_interleaved = params.interleaved != 0u;
            let first = h * WIDTH + select(pair, 2u * pair, is_interleaved);
            let second = h * WIDTH + select(pair + pairs, 2u * pair + 1u, is_interleaved);
            let x = head[first];
            let y = head[second];
            head[first] = x * cosine - y * sine;
            head[second] = x * sine + y * cosine;
        }
    }
    workgroupBarrier();
}

// Stores the key and the value at a place of the cache.
fn keep(share: Share, place: u32, thread: u32) {
    let inside = place % PAGE;
    let page = (place / PAGE * params.kv_heads + share.kv_head) * params.chunks * PAGE;
    if thread < params.chunks {
        let at = HEADS * WIDTH + 8u * thread;
        keys[page + thread * PAGE + inside] = vec4(
            half_pair(head[at], head[at + 1u]),
            half_pair(head[at + 2u], head[at + 3u]),
            half_pair(head[at + 4u], head[at + 5u]),
            half_pair(head[at + 6u], head[at + 7u]),
        );
    }
    for (var i = thread; i < 4u * params.chunks; i += THREADS) {
        let at = (HEADS + 1u) * WIDTH + 2u * i;
        values[4u * (page + inside * params.chunks) + i] = half_pair(head[at], head[at + 1u]);
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let share = share_of(id);
    let position = position_of(share.row);
    let width = 8u * params.chunks;
//each H ALL
    for (var i = thread; i < width; i += THREADS) {
        head[H * WIDTH + i] = feature_of(share, H, i);
    }
//end
    workgroupBarrier();
    if params.q_norm + params.k_norm != 0u {
        normalise(thread);
    }
    if params.q_pairs + params.k_pairs != 0u {
        rotate(position, thread);
    }
    let quads = 2u * params.chunks;
    for (var i = thread; i < HEADS * quads; i += THREADS) {
        let at = (i / quads) * WIDTH + 4u * (i % quads);
        query[(i / quads) * 64u + i % quads] =
            vec4(head[at], head[at + 1u], head[at + 2u], head[at + 3u]);
    }
    if position / PAGE >= share.first_page && position / PAGE < share.last_page {
        keep(share, place_of(share.row), thread);
    }
    storageBarrier();
    workgroupBarrier();
    attend(share, id, thread);
}

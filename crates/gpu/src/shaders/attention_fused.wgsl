// Attention of single tokens, one of each sequence, as they come from the projections: what heads.wgsl
// does to heads is done here, and keys and values are stored by those whose part they end. See
// attention_part.wgsl.

@group(0) @binding(2) var<storage, read> new_keys: array<f32>;
@group(0) @binding(3) var<storage, read> new_values: array<f32>;
// As in heads.wgsl.
@group(0) @binding(4) var<storage, read> gains: array<f32>;
@group(0) @binding(5) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read> sinks: array<f32>;
// Of each token, head and part: sums of values, and the largest score with the sum of weights.
@group(0) @binding(7) var<storage, read_write> sums: array<f32>;
@group(0) @binding(8) var<storage, read_write> extremes: array<vec2<f32>>;
@group(0) @binding(9) var<storage, read_write> out: array<f32>;
@group(0) @binding(10) var<storage, read_write> integers: array<u32>;
@group(0) @binding(11) var<storage, read_write> keys: array<vec4<u32>>;
@group(0) @binding(12) var<storage, read_write> values: array<vec4<u32>>;

// Threads that add up a head's squares.
const ADDERS: u32 = 8u;
var<workgroup> squares: array<f32, THREADS>;

fn feature_of(share: Share, h: u32, i: u32) -> f32 {
    let n = HEAD_DIM;
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

fn feature(h: u32, i: u32) -> f32 { return rows[h * QUADS + i / 4u][i % 4u]; }

fn set_feature(h: u32, i: u32, value: f32) { rows[h * QUADS + i / 4u][i % 4u] = value; }

// Norm of the queries and the key.
fn normalise(thread: u32) {
    let n = HEAD_DIM;
    let h = thread / ADDERS;
    var sum = 0.0;
    if h <= HEADS {
        for (var i = thread % ADDERS; i < n; i += ADDERS) {
            sum += feature(h, i) * feature(h, i);
        }
    }
    squares[thread] = sum;
    workgroupBarrier();
    for (var i = thread; i < (HEADS + 1u) * n; i += THREADS) {
        let h = i / n;
        let is_key = h == HEADS;
        if select(Q_NORM, K_NORM, is_key) {
            var all = 0.0;
            for (var k = 0u; k < ADDERS; k += 1u) {
                all += squares[h * ADDERS + k];
            }
            let eps = select(params.q_eps, params.k_eps, is_key);
            let gain = gains[select(0u, n, is_key) + i % n];
            set_feature(h, i % n, feature(h, i % n) * gain / sqrt(all / f32(n) + eps));
        }
    }
    workgroupBarrier();
}

// Rotation of the queries and the key.
fn rotate(position: u32, thread: u32) {
    // Not zero, which nothing could be divided by.
    const pairs = max(max(Q_PAIRS, K_PAIRS), 1u);
    for (var i = thread; i < (HEADS + 1u) * pairs; i += THREADS) {
        let h = i / pairs;
        let pair = i % pairs;
        if select(Q_PAIRS, K_PAIRS, h == HEADS) != 0u {
            let low = angles[(position & 255u) * pairs + pair];
            let high = angles[(256u + (position >> 8u)) * pairs + pair];
            let cosine = (low.x * high.x - low.y * high.y) * params.magnitude;
            let sine = (low.y * high.x + low.x * high.y) * params.magnitude;
            let first = select(pair, 2u * pair, INTERLEAVED);
            let second = select(pair + pairs, 2u * pair + 1u, INTERLEAVED);
            let x = feature(h, first);
            let y = feature(h, second);
            set_feature(h, first, x * cosine - y * sine);
            set_feature(h, second, x * sine + y * cosine);
        }
    }
    workgroupBarrier();
}

// Stores the key and the value for this workgroup and, where it ends with them, in a place of the cache.
fn keep(share: Share, place: u32, is_last: bool, thread: u32) {
    let inside = place % PAGE;
    let page = (place / PAGE * params.kv_heads + share.kv_head) * CHUNKS * PAGE;
    let pairs = 4u * CHUNKS;
    for (var i = thread; i < 2u * pairs; i += THREADS) {
        let is_key = i < pairs;
        let pair = select(i - pairs, i, is_key);
        let h = select(HEADS + 1u, HEADS, is_key);
        let both = half_pair(feature(h, 2u * pair), feature(h, 2u * pair + 1u));
        let c = pair / 4u;
        if is_key {
            new_key[c][pair % 4u] = both;
            if is_last {
                keys[page + c * PAGE + inside][pair % 4u] = both;
            }
        } else {
            new_value[c][pair % 4u] = both;
            if is_last {
                values[page + inside * CHUNKS + c][pair % 4u] = both;
            }
        }
    }
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let share = share_of(id);
    let position = position_of(share.row);
    let place = place_of(share.row);
    let width = 8u * CHUNKS;
    // Under way while the heads are prepared. What is stored here meanwhile is not taken from there.
    read_ahead(share, share.first_page, thread);
    for (var i = thread; i < (HEADS + 2u) * width; i += THREADS) {
        set_feature(i / width, i % width, feature_of(share, i / width, i % width));
    }
    workgroupBarrier();
    if Q_NORM || K_NORM {
        normalise(thread);
    }
    if Q_PAIRS + K_PAIRS != 0u {
        rotate(position, thread);
    }
    let page = position / PAGE;
    keep(share, place, page >= share.first_page && page < share.last_page, thread);
    workgroupBarrier();
    attend(share, id, position, thread);
}

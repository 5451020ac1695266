// What happens to heads between the projections and the attention, a workgroup for each head of each
// token: RMS norm, rotation, and storing keys and values in the cache.
// Grid: query heads + key heads + value heads, rows.

struct Params {
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    // Runs of 8 features that a head has in the cache; the last is padded with zeros.
    chunks: u32,
    // Rotated pairs; feature i goes with i + pairs, or 2i with 2i + 1 if `interleaved`.
    q_pairs: u32,
    k_pairs: u32,
    interleaved: u32,
    // Whether rows are those of logits instead of all tokens'.
    gathered: u32,
    // Whether queries and keys are normalised, with the gains at 0 and at `head_dim`.
    q_norm: u32,
    k_norm: u32,
    q_stride: u32,
    q_offset: u32,
    k_stride: u32,
    k_offset: u32,
    v_stride: u32,
    v_offset: u32,
    out_stride: u32,
    out_offset: u32,
    q_eps: f32,
    k_eps: f32,
    magnitude: f32,
}

@group(0) @binding(1) var<storage, read> queries: array<f32>;
@group(0) @binding(2) var<storage, read> keys: array<f32>;
@group(0) @binding(3) var<storage, read> values: array<f32>;
@group(0) @binding(4) var<storage, read> gains: array<f32>;
// Cosine and sine of each pair's angle at positions 0 to 255, then at multiples of 256.
@group(0) @binding(5) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;
// Of a page and head: (chunks, PAGE) keys of 8 halves, and (PAGE, 8 * chunks) values.
@group(0) @binding(7) var<storage, read_write> key_cache: array<u32>;
@group(0) @binding(8) var<storage, read_write> value_cache: array<u32>;

const THREADS: u32 = 128u;
const MOST: u32 = 512u;
var<workgroup> head: array<f32, MOST>;
var<workgroup> sums: array<f32, THREADS>;

fn normalise(gain: u32, eps: f32, thread: u32) {
    let n = params.head_dim;
    var squares = 0.0;
    for (var i = thread; i < n; i += THREADS) {
        squares += head[i] * head[i];
    }
    sums[thread] = squares;
    for (var half = THREADS / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if thread < half {
            sums[thread] += sums[thread + half];
        }
    }
    workgroupBarrier();
    let factor = 1.0 / sqrt(sums[0] / f32(n) + eps);
    for (var i = thread; i < n; i += THREADS) {
        head[i] *= factor * gains[gain + i];
    }
    workgroupBarrier();
}

fn rotate(pairs: u32, position: u32, thread: u32) {
    for (var i = thread; i < pairs; i += THREADS) {
        // The angle of a sum, so that a short table serves any context in full precision.
        let low = angles[(position & 255u) * pairs + i];
        let high = angles[(256u + (position >> 8u)) * pairs + i];
        let cosine = (low.x * high.x - low.y * high.y) * params.magnitude;
        let sine = (low.y * high.x + low.x * high.y) * params.magnitude;
        let first = select(i, 2u * i, params.interleaved != 0u);
        let second = select(i + pairs, 2u * i + 1u, params.interleaved != 0u);
        let x = head[first];
        let y = head[second];
        head[first] = x * cosine - y * sine;
        head[second] = x * sine + y * cosine;
    }
    workgroupBarrier();
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let row = id.y;
    let n = params.head_dim;
    let is_query = id.x < params.heads;
    let is_key = !is_query && id.x < params.heads + params.kv_heads;
    var at = id.x;
    if is_query {
        let source = row * params.q_stride + params.q_offset + at * n;
        for (var i = thread; i < n; i += THREADS) {
            head[i] = queries[source + i];
        }
    } else if is_key {
        at -= params.heads;
        let source = row * params.k_stride + params.k_offset + at * n;
        for (var i = thread; i < n; i += THREADS) {
            head[i] = keys[source + i];
        }
    } else {
        at -= params.heads + params.kv_heads;
        let source = row * params.v_stride + params.v_offset + at * n;
        for (var i = thread; i < n; i += THREADS) {
            head[i] = values[source + i];
        }
    }
    for (var i = n + thread; i < 8u * params.chunks; i += THREADS) {
        head[i] = 0.0;
    }
    workgroupBarrier();
    if is_query && params.q_norm != 0u {
        normalise(0u, params.q_eps, thread);
    }
    if is_key && params.k_norm != 0u {
        normalise(n, params.k_eps, thread);
    }
    var token = row;
    if params.gathered != 0u {
        token = wanted_row(row);
    }
    if is_query && params.q_pairs != 0u {
        rotate(params.q_pairs, position_of(token), thread);
    }
    if is_key && params.k_pairs != 0u {
        rotate(params.k_pairs, position_of(token), thread);
    }
    if is_query {
        let to = row * params.out_stride + params.out_offset + at * n;
        for (var i = thread; i < n; i += THREADS) {
            out[to + i] = head[i];
        }
        return;
    }
    let place = place_of(row);
    let inside = place % PAGE;
    let page = (place / PAGE * params.kv_heads + at) * params.chunks * PAGE;
    for (var i = thread; i < 4u * params.chunks; i += THREADS) {
        let pair = half_pair(head[2u * i], head[2u * i + 1u]);
        if is_key {
            key_cache[4u * (page + (i / 4u) * PAGE + inside) + i % 4u] = pair;
        } else {
            value_cache[4u * (page + inside * params.chunks) + i] = pair;
        }
    }
}

// Attention of a tile of consecutive tokens, as in prefill, for one head: flash attention, page by
// page. 16 threads share four rows; each has 4 tokens of a page while scores are made, and QUADS runs
// of 4 features while values are summed up. Grid: tiles, heads.

// Queries of a tile.
const TILE: u32 = THREADS / 4u;
// Runs of 4 features of a head.
const WIDTH: u32 = 16u * QUADS;

@group(0) @binding(2) var<storage, read> keys: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> values: array<vec2<u32>>;
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

var<workgroup> query: array<vec4<f32>, TILE * WIDTH>;
// Weights, token by token, of four rows at a time.
var<workgroup> weights: array<vec4<f32>, PAGE * TILE / 4u>;
// Of each row, what the 16 threads know of it.
var<workgroup> known: array<f32, TILE * 16u>;

// Scores of a row that begin at position `base + lane`, 16 positions apart; the lowest for those that
// are not seen.
fn scores_of(products: vec4<f32>, position: u32, end: u32, first: u32) -> vec4<f32> {
    let seen = visible(position, end);
    let at = first + vec4(0u, 16u, 32u, 48u);
    let is_seen = (at >= vec4(seen.x)) & (at < vec4(seen.y));
    let scores = vec4(
        score_of(products.x),
        score_of(products.y),
        score_of(products.z),
        score_of(products.w),
    );
    return select(vec4(LOWEST), scores, is_seen);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let place = tile(id.x);
    let span = span_of(place.x);
    let head = id.y;
    let kv_head = head / (params.heads / params.kv_heads);
    let row = span.row + place.y;
    let rows = min(span.tokens - place.y, TILE);
    let position = span.position + place.y;
    let end = span.position + span.tokens;

    for (var i = thread; i < TILE * WIDTH; i += THREADS) {
        let r = i / WIDTH;
        let source = (row + r) * params.q_stride + params.q_offset + head * HEAD_DIM;
        query[i] = quad_of(source, i % WIDTH, r < rows);
    }

    let group = thread / 16u;
    let lane = thread % 16u;
//each I 4
    var most_I = LOWEST;
    var weight_I = 0.0;
//each Q QUADS
    var sum_I_Q = vec4(0.0);
//end
//end

    let first_seen = visible(position, end).x;
    let last_seen = visible(position + rows - 1u, end).y;
    for (var p = first_seen / PAGE; p * PAGE < last_seen; p += 1u) {
        let page = (page_of(span.pages, p) * params.kv_heads + kv_head) * CHUNKS * PAGE;
        let base = p * PAGE;
        workgroupBarrier();
//each I 4
        var score_I = vec4(0.0);
//end
        for (var c = 0u; c < CHUNKS; c += 1u) {
            let at = page + c * PAGE + lane;
//each J 4
            let key_J = keys[at + J * 16u];
//end
//each I 4
            let x_I = query[(4u * group + I) * WIDTH + 2u * c];
            let y_I = query[(4u * group + I) * WIDTH + 2u * c + 1u];
//end
//each J 4
            let low_J = vec4(halves(key_J.x), halves(key_J.y));
            let high_J = vec4(halves(key_J.z), halves(key_J.w));
//each I 4
            score_I[J] += dot(low_J, x_I) + dot(high_J, y_I);
//end
//end
        }
//each I 4
        score_I = scores_of(score_I, position + 4u * group + I, end, base + lane);
        known[(4u * group + I) * 16u + lane] =
            max(max(score_I.x, score_I.y), max(score_I.z, score_I.w));
//end
        workgroupBarrier();
//each I 4
        var highest_I = most_I;
//each J 16
        highest_I = max(highest_I, known[(4u * group + I) * 16u + J]);
//end
        let shrink_I = exp(most_I - highest_I);
        most_I = highest_I;
        score_I = select(exp(score_I - highest_I), vec4(0.0), score_I == vec4(LOWEST));
        // Of the own tokens only; the threads of a row add theirs up in the end.
        weight_I = weight_I * shrink_I + dot(score_I, vec4(1.0));
//each Q QUADS
        sum_I_Q *= shrink_I;
//end
//end
//each J 4
        weights[(lane + J * 16u) * (TILE / 4u) + group] =
            vec4(score_0[J], score_1[J], score_2[J], score_3[J]);
//end
        workgroupBarrier();
        let begin = max(first_seen, base) - base;
        let stop = min(last_seen - base, PAGE);
        let source = 2u * page + lane;
        var t = begin;
        for (; t + 4u <= stop; t += 4u) {
//each T 4
            let w_T = weights[(t + T) * (TILE / 4u) + group];
//each Q QUADS
            let packed_T_Q = value_of(source, t + T, lane, Q);
//end
//end
//each T 4
//each Q QUADS
            let value_T_Q = vec4(halves(packed_T_Q.x), halves(packed_T_Q.y));
//each I 4
            sum_I_Q += w_T[I] * value_T_Q;
//end
//end
//end
        }
        for (; t < stop; t += 1u) {
            let w = weights[t * (TILE / 4u) + group];
//each Q QUADS
            let packed_Q = value_of(source, t, lane, Q);
            let value_Q = vec4(halves(packed_Q.x), halves(packed_Q.y));
//each I 4
            sum_I_Q += w[I] * value_Q;
//end
//end
        }
    }

    workgroupBarrier();
//each I 4
    known[(4u * group + I) * 16u + lane] = weight_I;
//end
    workgroupBarrier();
//each I 4
    if 4u * group + I < rows {
        var all = 0.0;
//each J 16
        all += known[(4u * group + I) * 16u + J];
//end
        var scale = 1.0;
        if SINKS {
            let highest = max(most_I, sinks[head]);
            scale = exp(most_I - highest);
            all = all * scale + exp(sinks[head] - highest);
        }
        let to = (row + 4u * group + I) * params.out_stride + params.out_offset
            + head * HEAD_DIM;
//each Q QUADS
        store(to, 4u * (lane + 16u * Q), sum_I_Q * (scale / all));
//end
    }
//end
}

// Four halves of a token's values; some that exist where the head has no such features.
fn value_of(source: u32, token: u32, lane: u32, q: u32) -> vec2<u32> {
    let quads = 2u * CHUNKS;
    let quad = min(lane + 16u * q, quads - 1u);
    return values[source - lane + token * quads + quad];
}

fn store(to: u32, feature: u32, four: vec4<f32>) {
//each J 4
    if feature + J < HEAD_DIM {
        out[to + feature + J] = four[J];
    }
//end
}

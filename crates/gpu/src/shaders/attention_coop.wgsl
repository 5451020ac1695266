// Attention of a tile of 64 consecutive tokens for one head through cooperative matrices of 16 x 16 x
// 16, half precision in, single precision out. A subgroup has 16 of the queries.
//
// What a matrix holds cannot be scaled row by row, as flash attention does when it meets a larger
// score. So pages are gone through twice: first for the largest score of each row, then for the
// weights and the sums of values. Grid: tiles, heads.
//
// FRAGS matrices hold a head's features, filled up with zeros.

const SUBGROUPS: u32 = 4u;
const THREADS: u32 = SUBGROUPS * 32u;
// Halves from one row of `tile` to the next, eight more than needed, so that rows begin in different
// banks; and of `weights`.
const LINE: u32 = 16u * FRAGS + 8u;
const WEIGHT_LINE: u32 = PAGE + 8u;

// Two vectors of four for each run of eight features.
@group(0) @binding(2) var<storage, read> keys: array<vec4<f16>>;
@group(0) @binding(3) var<storage, read> values: array<vec4<f16>>;
@group(0) @binding(4) var<storage, read> sinks: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

// Rows of queries, then of a page's keys or values.
var<workgroup> rows_of: array<vec4<f16>, PAGE * LINE / 4u>;
// Of each subgroup the scores of its queries: four matrices, column by column.
var<workgroup> scores: array<f32, SUBGROUPS * 1024u>;
// Of each subgroup the weights of its queries, row by row.
var<workgroup> weights: array<f16, SUBGROUPS * 16u * WEIGHT_LINE>;
var<workgroup> known: array<f32, THREADS>;

// Brings a page's keys into `rows_of`, a row for each token.
fn bring_keys(page: u32, thread: u32) {
    for (var i = thread; i < 2u * FRAGS * PAGE; i += THREADS) {
        let c = i / PAGE;
        let token = i % PAGE;
        var low = vec4<f16>();
        var high = vec4<f16>();
        if c < CHUNKS {
            let at = 2u * (page + c * PAGE + token);
            low = keys[at];
            high = keys[at + 1u];
        }
        let to = (token * LINE + 8u * c) / 4u;
        rows_of[to] = low;
        rows_of[to + 1u] = high;
    }
}

// The same with values; zeros for tokens that nobody sees, which may be anything.
fn bring_values(page: u32, begin: u32, end: u32, thread: u32) {
    for (var i = thread; i < 2u * FRAGS * PAGE; i += THREADS) {
        let c = i % (2u * FRAGS);
        let token = i / (2u * FRAGS);
        var low = vec4<f16>();
        var high = vec4<f16>();
        if c < CHUNKS && token >= begin && token < end {
            let at = 2u * (page + token * CHUNKS + c);
            low = values[at];
            high = values[at + 1u];
        }
        let to = (token * LINE + 8u * c) / 4u;
        rows_of[to] = low;
        rows_of[to + 1u] = high;
    }
}

fn seen_score(product: f32, at: u32, seen: vec2<u32>) -> f32 {
    return select(LOWEST, capped(product), at >= seen.x && at < seen.y);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
) {
    let place = tile(id.x);
    let span = span_of(place.x);
    let head = id.y;
    let kv_head = head / (params.heads / params.kv_heads);
    let row = span.row + place.y;
    let rows = min(span.tokens - place.y, PAGE);
    let position = span.position + place.y;
    let end = span.position + span.tokens;

    // Queries are scaled while they are in single precision.
    for (var i = thread; i < 4u * FRAGS * PAGE; i += THREADS) {
        let r = i / (4u * FRAGS);
        let quad = i % (4u * FRAGS);
        let source = (row + r) * params.q_stride + params.q_offset + head * HEAD_DIM;
        let scaled = quad_of(source, quad, r < rows) * params.scale;
        rows_of[r * LINE / 4u + quad] = vec4<f16>(scaled);
    }
    workgroupBarrier();
//each F FRAGS
    let query_F = coopLoadT<coop_mat16x16<f16, A>>(
        &rows_of[(16u * subgroup * LINE + F * 16u) / 4u], LINE / 4u);
    var sum_F = coop_mat16x16<f32, C>();
//end

    // A lane looks at every second token of its row.
    let own = lane % 16u;
    let side = lane / 16u;
    let seen = visible(position + 16u * subgroup + own, end);
    let corner = subgroup * 1024u;
    let first_seen = visible(position, end).x;
    let last_seen = visible(position + rows - 1u, end).y;
    let first_page = first_seen / PAGE;
    let last_page = (last_seen + PAGE - 1u) / PAGE;

    var highest = LOWEST;
    for (var p = first_page; p < last_page; p += 1u) {
        let page = (page_of(span.pages, p) * params.kv_heads + kv_head) * CHUNKS * PAGE;
        workgroupBarrier();
        bring_keys(page, thread);
        workgroupBarrier();
//each N 4
        var score_N = coop_mat16x16<f32, C>();
//each F FRAGS
        let key_N_F = coopLoad<coop_mat16x16<f16, B>>(
            &rows_of[(16u * N * LINE + F * 16u) / 4u], LINE / 4u);
        score_N = coopMultiplyAdd(query_F, key_N_F, score_N);
//end
        coopStore(score_N, &scores[corner + N * 256u], 16u);
//end
        workgroupBarrier();
        for (var i = 0u; i < PAGE / 2u; i += 1u) {
            let t = 2u * i + side;
            let product = scores[corner + 16u * t + own];
            highest = max(highest, seen_score(product, p * PAGE + t, seen));
        }
    }
    known[thread] = highest;
    workgroupBarrier();
    highest = max(highest, known[thread ^ 16u]);
    if SINKS {
        highest = max(highest, sinks[head]);
    }

    var weight = 0.0;
    for (var p = first_page; p < last_page; p += 1u) {
        let page = (page_of(span.pages, p) * params.kv_heads + kv_head) * CHUNKS * PAGE;
        workgroupBarrier();
        bring_keys(page, thread);
        workgroupBarrier();
//each N 4
        var again_N = coop_mat16x16<f32, C>();
//each F FRAGS
        let key_again_N_F = coopLoad<coop_mat16x16<f16, B>>(
            &rows_of[(16u * N * LINE + F * 16u) / 4u], LINE / 4u);
        again_N = coopMultiplyAdd(query_F, key_again_N_F, again_N);
//end
        coopStore(again_N, &scores[corner + N * 256u], 16u);
//end
        workgroupBarrier();
        for (var i = 0u; i < PAGE / 2u; i += 1u) {
            let t = 2u * i + side;
            let at = p * PAGE + t;
            let score = capped(scores[corner + 16u * t + own]);
            // What is added up is what is multiplied with.
            let w = f16(select(0.0, exp(score - highest), at >= seen.x && at < seen.y));
            weight += f32(w);
            weights[(16u * subgroup + own) * WEIGHT_LINE + t] = w;
        }
        bring_values(
            page,
            max(first_seen, p * PAGE) - p * PAGE,
            min(last_seen - p * PAGE, PAGE),
            thread,
        );
        workgroupBarrier();
//each N 4
        let weights_N = coopLoadT<coop_mat16x16<f16, A>>(
            &weights[16u * subgroup * WEIGHT_LINE + N * 16u], WEIGHT_LINE);
//each F FRAGS
        let value_N_F = coopLoadT<coop_mat16x16<f16, B>>(
            &rows_of[(16u * N * LINE + F * 16u) / 4u], LINE / 4u);
        sum_F = coopMultiplyAdd(weights_N, value_N_F, sum_F);
//end
//end
    }
    workgroupBarrier();
    known[thread] = weight;
    workgroupBarrier();
    weight += known[thread ^ 16u];
    if SINKS {
        weight += exp(sinks[head] - highest);
    }
    workgroupBarrier();
    known[thread] = weight;
//each F FRAGS
    workgroupBarrier();
    coopStore(sum_F, &scores[corner], 16u);
    workgroupBarrier();
    for (var i = lane; i < 256u; i += 32u) {
        let r = i / 16u;
        let feature = F * 16u + i % 16u;
        let q = 16u * subgroup + r;
        if q < rows && feature < HEAD_DIM {
            let to = (row + q) * params.out_stride + params.out_offset + head * HEAD_DIM;
            out[to + feature] = scores[corner + (i % 16u) * 16u + r] / known[32u * subgroup + r];
        }
    }
//end
}

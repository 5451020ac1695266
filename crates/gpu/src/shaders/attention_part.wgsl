// One part of the past of a token, for HEADS query heads that share a key-value head (flash decoding).
// `attention_join.wgsl` joins the parts. Grid: parts, key-value heads * blocks, tokens.

const THREADS: u32 = 128u;

var<workgroup> query: array<vec4<f32>, HEADS * 64u>;
var<workgroup> products: array<f32, 2u * HEADS * PAGE>;
// Scores, then weights, token by token.
var<workgroup> weights: array<f32, HEADS * PAGE>;
var<workgroup> largest: array<f32, HEADS * 16u>;
var<workgroup> shared_sums: array<vec3<f32>, THREADS>;

// A workgroup's share of a token's attention.
struct Share {
    row: u32,
    kv_head: u32,
    // Its query heads.
    first_head: u32,
    heads: u32,
    // The pages to look at, of `pages`.
    first_page: u32,
    last_page: u32,
    pages: u32,
    // The positions that are seen.
    seen: vec2<u32>,
}

fn share_of(id: vec3<u32>) -> Share {
    let row = lone(id.z);
    let seen = visible(position_of(row), end_of(row));
    let group = params.heads / params.kv_heads;
    let block = (id.y % params.blocks) * HEADS;
    let kv_head = id.y / params.blocks;
    return Share(
        row,
        kv_head,
        kv_head * group + block,
        min(group - block, HEADS),
        max(id.x * part_pages(), seen.x / PAGE),
        min((id.x + 1u) * part_pages(), (seen.y + PAGE - 1u) / PAGE),
        pages_of(row),
        seen,
    );
}

// Attends with what `query` holds.
fn attend(share: Share, id: vec3<u32>, thread: u32) {
    let token = thread % PAGE;
    let side = thread / PAGE;
    // Threads beyond whole groups of `pairs` have no share in the sums.
    let pairs = 4u * params.chunks;
    let pair = thread % pairs;
    let lane = thread / pairs;
    let lanes = THREADS / pairs;

//each G HEADS
    var most_G = LOWEST;
    var sum_G = vec2(0.0, 0.0);
    var weight_G = 0.0;
//end

    for (var p = share.first_page; p < share.last_page; p += 1u) {
        let page = (page_of(share.pages, p) * params.kv_heads + share.kv_head) * params.chunks * PAGE;
        let base = p * PAGE;
        let begin = max(share.seen.x, base) - base;
        let end = min(share.seen.y - base, PAGE);
        workgroupBarrier();
//each G HEADS
        var product_G = 0.0;
//end
        for (var first = side; first < params.chunks; first += 16u) {
//each U 8
            let c_U = min(first + 2u * U, params.chunks - 1u);
            let key_U = keys[page + c_U * PAGE + token];
//end
//each U 8
            if first + 2u * U < params.chunks {
//each G HEADS
                product_G += dot8(key_U, query[G * 64u + 2u * c_U], query[G * 64u + 2u * c_U + 1u]);
//end
            }
//end
        }
//each G HEADS
        products[(side * HEADS + G) * PAGE + token] = product_G;
//end
        workgroupBarrier();
        for (var i = thread; i < HEADS * PAGE; i += THREADS) {
            let g = i / PAGE;
            let t = i % PAGE;
            let score = score_of(products[i] + products[HEADS * PAGE + i]);
            weights[t * HEADS + g] = select(LOWEST, score, t >= begin && t < end);
        }
        workgroupBarrier();
        for (var i = thread; i < HEADS * 16u; i += THREADS) {
            let g = i % HEADS;
            let t = i / HEADS;
            largest[g * 16u + t] = max(
                max(weights[t * HEADS + g], weights[(t + 16u) * HEADS + g]),
                max(weights[(t + 32u) * HEADS + g], weights[(t + 48u) * HEADS + g]),
            );
        }
        workgroupBarrier();
//each G HEADS
        var highest_G = most_G;
//each J 16
        highest_G = max(highest_G, largest[G * 16u + J]);
//end
        let shrink_G = exp(most_G - highest_G);
        most_G = highest_G;
        sum_G *= shrink_G;
        weight_G *= shrink_G;
        if thread < PAGE {
            let score = weights[thread * HEADS + G];
            let seen_here = thread >= begin && thread < end;
            weights[thread * HEADS + G] = select(0.0, exp(score - highest_G), seen_here);
        }
//end
        workgroupBarrier();
        if lane < lanes {
            // All of a round's values are under way together. Weights of tokens that are not seen are
            // zero, but their values may be anything.
            let source = 4u * page + pair;
            for (var first = lane; first < end; first += 16u * lanes) {
//each U 16
                let t_U = min(first + U * lanes, PAGE - 1u);
                let packed_U = values[source + 4u * t_U * params.chunks];
//end
//each U 16
                if first + U * lanes >= begin && first + U * lanes < end {
                    let value = halves(packed_U);
//each G HEADS
                    let w_G = weights[t_U * HEADS + G];
                    sum_G += w_G * value;
                    weight_G += w_G;
//end
                }
//end
            }
        }
    }

//each G HEADS
    workgroupBarrier();
    shared_sums[thread] = vec3(sum_G, weight_G);
    workgroupBarrier();
    if lane == 0u && G < share.heads {
        var all = shared_sums[thread];
        for (var i = 1u; i < lanes; i += 1u) {
            all += shared_sums[thread + i * pairs];
        }
        let at = (id.z * params.heads + share.first_head + G) * parts() + id.x;
        sums[2u * (at * pairs + pair)] = all.x;
        sums[2u * (at * pairs + pair) + 1u] = all.y;
        if pair == 0u {
            extremes[at] = vec2(most_G, all.z);
        }
    }
//end
}

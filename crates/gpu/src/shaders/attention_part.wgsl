// One part of the past of a token, for HEADS query heads that share a key-value head (flash decoding), a
// team of threads for each. `attention_join.wgsl` joins the parts; where there is one alone, this is all.
// Grid: parts, key-value heads * blocks, tokens.
//
// Single tokens wait for instructions more than for anything else: they go through the code once. So it is
// kept short, and what many registers would do is left to many threads.

const THREADS: u32 = HEADS * TEAM;
// Threads of a team that have the same token of a page, each with its own features of the key.
const SIDES: u32 = TEAM / PAGE;
// Runs of four features of a head at most.
const QUADS: u32 = 64u;
// Threads of a team that have the same features of different tokens.
const LANES: u32 = min(TEAM / CHUNKS, PAGE);
// Of what is not there.
const NONE: u32 = 0xffffffffu;

// Heads, of four features each: queries, then, where they are new, key and value. Later sums of values.
var<workgroup> rows: array<vec4<f32>, ROOM>;
// Of each head and side the products of a page's tokens.
var<workgroup> products: array<f32, SIDES * HEADS * PAGE>;
// Of each head scores, then weights.
var<workgroup> weights: array<vec4<f32>, HEADS * PAGE / 4u>;
var<workgroup> largest: array<vec4<f32>, HEADS * 4u>;
// A new key and value as the cache has them.
var<workgroup> new_key: array<vec4<u32>, QUADS / 2u>;
var<workgroup> new_value: array<vec4<u32>, QUADS / 2u>;

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

// The keys of a page that a thread begins with, of one token: every run of 8 features that is its side's.
var<private> ahead: array<vec4<u32>, KEY_LOADS>;

// Where the keys of page `p` of a share begin, and its values.
fn page_at(share: Share, p: u32) -> u32 {
    return (page_of(share.pages, p) * params.kv_heads + share.kv_head) * CHUNKS * PAGE;
}

// Reads keys of a page ahead of their use.
fn read_ahead(share: Share, p: u32, thread: u32) {
    if p < share.last_page {
        let source = page_at(share, p) + thread % PAGE;
        let side = thread / PAGE % SIDES;
//each U KEY_LOADS
        ahead[U] = keys[source + min(side + SIDES * U, CHUNKS - 1u) * PAGE];
//end
    }
}

fn product8(head: u32, c: u32, packed: vec4<u32>) -> f32 {
    return dot8(packed, rows[head * QUADS + 2u * c], rows[head * QUADS + 2u * c + 1u]);
}

// Attends with the queries in `rows` and what `read_ahead` has read. The key and value at position
// `fresh` are those in workgroup memory.
fn attend(share: Share, id: vec3<u32>, fresh: u32, thread: u32) {
    let head = thread / TEAM;
    let member = thread % TEAM;
    let token = member % PAGE;
    let side = member / PAGE;
    // Of the values, a thread has 8 features of every so manieth token.
    let chunk = member % CHUNKS;
    let lane = member / CHUNKS;

    var most = LOWEST;
    // Of the thread's token.
    var weight = 0.0;
    var low = vec4(0.0);
    var high = vec4(0.0);

    for (var p = share.first_page; p < share.last_page; p += 1u) {
        let page = page_at(share, p);
        let base = p * PAGE;
        let begin = max(share.seen.x, base) - base;
        let end = min(share.seen.y - base, PAGE);
        let is_fresh = base + token == fresh;
        var product = 0.0;
//each U KEY_LOADS
        let c_U = side + SIDES * U;
        if c_U < CHUNKS {
            product += product8(head, c_U, select(ahead[U], new_key[c_U], is_fresh));
        }
//end
        for (var c = side + SIDES * KEY_LOADS; c < CHUNKS; c += SIDES) {
            let more = keys[page + c * PAGE + token];
            product += product8(head, c, select(more, new_key[c], is_fresh));
        }
        workgroupBarrier();
        products[(head * SIDES + side) * PAGE + token] = product;
        read_ahead(share, p + 1u, thread);
        // All of these are under way together.
        let source = page + chunk;
//each U LOADS
        let first_U = values[source + min(lane + U * LANES, PAGE - 1u) * CHUNKS];
//end
        workgroupBarrier();
        if member < 16u {
            var four = vec4(LOWEST);
//each J 4
            let t_J = 4u * member + J;
            var all_J = 0.0;
            for (var s = 0u; s < SIDES; s += 1u) {
                all_J += products[(head * SIDES + s) * PAGE + t_J];
            }
            let score_J = score_of(all_J);
            if t_J >= begin && t_J < end {
                four[J] = score_J;
            }
//end
            weights[head * 16u + member] = four;
            largest[head * 4u + member / 4u][member % 4u] =
                max(max(four.x, four.y), max(four.z, four.w));
        }
        workgroupBarrier();
        var all = max(
            max(largest[head * 4u], largest[head * 4u + 1u]),
            max(largest[head * 4u + 2u], largest[head * 4u + 3u]),
        );
        let highest = max(most, max(max(all.x, all.y), max(all.z, all.w)));
        let shrink = exp(most - highest);
        most = highest;
        low *= shrink;
        high *= shrink;
        if side == 0u {
            let score = weights[head * 16u + token / 4u][token % 4u];
            let own = select(0.0, exp(score - highest), token >= begin && token < end);
            weights[head * 16u + token / 4u][token % 4u] = own;
            weight = weight * shrink + own;
        }
        workgroupBarrier();
        if lane < LANES {
            // Weights of tokens that are not seen are zero, but their values may be anything.
//each U LOADS
            let t_U = lane + U * LANES;
            if t_U >= begin && t_U < end {
                let value = select(first_U, new_value[chunk], base + t_U == fresh);
                let w = weights[head * 16u + t_U / 4u][t_U % 4u];
                low += w * vec4(halves(value.x), halves(value.y));
                high += w * vec4(halves(value.z), halves(value.w));
            }
//end
            for (var t = lane + LOADS * LANES; t < end; t += LANES) {
                if t >= begin {
                    let more = values[source + t * CHUNKS];
                    let value = select(more, new_value[chunk], base + t == fresh);
                    let w = weights[head * 16u + t / 4u][t % 4u];
                    low += w * vec4(halves(value.x), halves(value.y));
                    high += w * vec4(halves(value.z), halves(value.w));
                }
            }
        }
    }

    // Sums of the upper half of the lanes are added to those of the lower half, which are stored.
    workgroupBarrier();
    let half = (LANES + 1u) / 2u;
    let quads = 2u * CHUNKS;
    let own = (head * half + lane % half) * quads + 2u * chunk;
    if lane >= half && lane < LANES {
        rows[own] = low;
        rows[own + 1u] = high;
    }
    if side == 0u {
        weights[head * 16u + token / 4u][token % 4u] = weight;
    }
    if member == 0u {
        largest[head].x = most;
    }
    workgroupBarrier();
    if lane < half {
        if lane + half < LANES {
            low += rows[own];
            high += rows[own + 1u];
        }
        rows[own] = low;
        rows[own + 1u] = high;
    }
    workgroupBarrier();
    // Four features of a head for each thread.
    for (var first = 0u; first < HEADS * quads; first += THREADS) {
        let h = (first + thread) / quads;
        let quad = (first + thread) % quads;
        let valid = h < share.heads;
        var sum = vec4(0.0);
        var total = vec4(0.0);
        if valid {
            for (var i = 0u; i < half; i += 1u) {
                sum += rows[(h * half + i) * quads + quad];
            }
//each I 16
            total += weights[h * 16u + I];
//end
        }
        let all = dot(total, vec4(1.0));
        let highest = largest[min(h, HEADS - 1u)].x;
        if parts() == 1u {
            finish(share, share.first_head + h, quad, sum, all, highest, valid, thread);
        } else if valid {
            let part = (id.z * params.heads + share.first_head + h) * parts() + id.x;
            let at = 4u * (part * quads + quad);
//each J 4
            sums[at + J] = sum[J];
//end
            if quad == 0u {
                extremes[part] = vec2(highest, all);
            }
        }
    }
}

// Stores four features of a head that has no other parts; as integers as well, if a product wants them.
fn finish(
    share: Share,
    head: u32,
    quad: u32,
    sum: vec4<f32>,
    weight: f32,
    most: f32,
    valid: bool,
    thread: u32,
) {
    var all = sum;
    if valid {
        if SINKS {
            let sink = sinks[head];
            let highest = max(most, sink);
            let factor = exp(most - highest);
            all *= factor / (weight * factor + exp(sink - highest));
        } else {
            all /= weight;
        }
        let to = share.row * params.out_stride + params.out_offset + head * HEAD_DIM;
//each J 4
        if 4u * quad + J < HEAD_DIM {
            out[to + 4u * quad + J] = all[J];
        }
//end
    }
    if integer_words != 0u {
        let chunk = (head * HEAD_DIM + 4u * quad) / 32u;
        let chunks = params.heads * HEAD_DIM / 32u;
        store_integers(all, valid, share.row * integer_words, chunks, chunk, thread);
    }
}

// Takes the best tokens out of a row's groups, one after the other. Grid: 1, rows.

@group(0) @binding(2) var<storage, read_write> leaders: array<vec2<u32>>;
// Of each row the number of tokens, the sum of exponentials by the best logit, and the tokens with the
// bits of their logits.
@group(0) @binding(3) var<storage, read_write> found: array<u32>;
// The best token of each row, as what comes next.
@group(0) @binding(4) var<storage, read_write> tokens: array<u32>;

const SIZE: u32 = CHUNKS;

// Thread `i` looks after groups `i`, `i + SIZE` and so on, and after chunk `i` of every group, so that
// nobody reads what another has written.
var<workgroup> groups: array<vec2<u32>, GROUPS>;

fn run(id: vec3<u32>, thread: u32) {
    let row = id.y;
    let to = row * FOUND;
    var top = NOTHING;
    for (var g = thread; g < GROUPS; g += SIZE) {
        groups[g] = leaders[group_at(row, g)];
        top = better(top, groups[g]);
    }
    top = best_of(top);
    let most = logit_of(top.x);
    var sum = 0.0;
    for (var g = thread; g < GROUPS; g += SIZE) {
        let factor = exp(logit_of(groups[g].x) - most);
        sum += select(0.0, bitcast<f32>(leaders[sum_at(row, g)].x) * factor, groups[g].x != 0u);
    }
    sum = sum_of(sum);
    if thread == 0u {
        found[to + 1u] = bitcast<u32>(sum);
        tokens[row] = select(0u, min(top.y, params.readable - 1u), top.x != 0u);
    }
    let count = best_wanted();
    var there = 0u;
    for (var i = 0u; i < count; i += 1u) {
        if thread == 0u && top.x != 0u {
            found[to + 2u + 2u * i] = top.y;
            found[to + 3u + 2u * i] = logits[row * params.vocab + top.y];
        }
        there += u32(top.x != 0u);
        // The next of its chunk and of its group. Where nothing is left, nothing comes of it.
        let group = min(top.y / GROUP, GROUPS - 1u);
        let chunk = top.y % CHUNKS;
        var own = token_at(row, group * GROUP + thread * CHUNKS + chunk);
        let is_behind = own.x < top.x || (own.x == top.x && own.y > top.y);
        own = select(NOTHING, own, is_behind && own.x != 0u);
        let next = best_of(own);
        let at = chunk_at(row, group, thread);
        var of_chunk = leaders[at];
        if thread == chunk && top.x != 0u {
            of_chunk = next;
            leaders[at] = next;
        }
        let of_group = best_of(of_chunk);
        if thread == group % SIZE {
            groups[group] = of_group;
        }
        top = NOTHING;
        for (var g = thread; g < GROUPS; g += SIZE) {
            top = better(top, groups[g]);
        }
        top = best_of(top);
    }
    if thread == 0u {
        found[to] = there;
    }
}

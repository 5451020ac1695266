// Takes the best tokens out of a row's groups, one after the other, and makes the tables those of a pass that goes
// on with the best one of each row, if all rows are of single tokens. Grid: 1, rows.

@group(0) @binding(2) var<storage, read_write> leaders: array<vec2<u32>>;
// Of each row the number of tokens, the sum of exponentials by the best logit, and the tokens with the
// bits of their logits.
@group(0) @binding(3) var<storage, read_write> found: array<u32>;
// The best token of each row, as what comes next.
@group(0) @binding(4) var<storage, read_write> tokens: array<u32>;
@group(0) @binding(5) var<storage, read_write> positions: array<u32>;

// Thread `i` looks after groups `i`, `i + SIZE` and so on, and after these chunks of every group, so that
// nobody reads what another has written.
var<workgroup> groups: array<vec2<u32>, GROUPS>;
var<workgroup> chosen: array<u32, MOST>;

fn run(id: vec3<u32>, thread: u32) {
    let row = id.y;
    let to = (first_row + row) * FOUND;
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
        positions[row] += 1u;
        // Position, place, and end of its span: in a page places follow each other as positions do.
//each I 3
        step[HEADER + 4u * row + I] += 1u;
//end
    }
    // Where the best token is enough, the rest is left out: nobody waits for its instructions.
    if ONE {
        if thread == 0u {
            found[to] = u32(top.x != 0u);
            found[to + 2u] = top.y;
            found[to + 3u] = logits[row * params.vocab + min(top.y, params.vocab - 1u)];
        }
        return;
    }
    let count = best_wanted();
    var there = 0u;
    for (var i = 0u; i < count; i += 1u) {
        if thread == 0u {
            chosen[i] = top.y;
        }
        there += u32(top.x != 0u);
        if i + 1u < count {
            top = next_behind(row, top, thread);
        }
    }
    workgroupBarrier();
    for (var i = thread; i < there; i += SIZE) {
        found[to + 2u + 2u * i] = chosen[i];
        found[to + 3u + 2u * i] = logits[row * params.vocab + chosen[i]];
    }
    if thread == 0u {
        found[to] = there;
    }
}

// Takes a row's best token out of its chunk and group; the best that is left, if any.
fn next_behind(row: u32, top: vec2<u32>, thread: u32) -> vec2<u32> {
    let group = min(top.y / GROUP, GROUPS - 1u);
    let chunk = top.y % CHUNKS;
    // Loads under way together.
//each J TURNS
    let at_J = thread + J * SIZE;
    let token_J = token_at(row, group * GROUP + at_J * CHUNKS + chunk);
    let leader_J = leaders[chunk_at(row, group, at_J)];
//end
    var behind = NOTHING;
    var others = NOTHING;
//each J TURNS
    let is_behind_J = token_J.x < top.x || (token_J.x == top.x && token_J.y > top.y);
    behind = better(behind, select(NOTHING, token_J, is_behind_J && token_J.x != 0u));
    others = better(others, select(leader_J, NOTHING, at_J == chunk));
//end
    let next = best_of(behind);
    if thread == chunk % SIZE && top.x != 0u {
        leaders[chunk_at(row, group, chunk)] = next;
    }
    let of_group = better(best_of(others), next);
    if thread == group % SIZE {
        groups[group] = of_group;
    }
    var left = NOTHING;
    for (var g = thread; g < GROUPS; g += SIZE) {
        left = better(left, groups[g]);
    }
    return best_of(left);
}

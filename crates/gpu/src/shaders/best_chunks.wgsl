// The best token of each chunk and of each group. Grid: groups, rows.

@group(0) @binding(2) var<storage, read_write> leaders: array<vec2<u32>>;

// Several threads share a chunk.
const EACH: u32 = CHUNK * CHUNKS / SIZE;

var<workgroup> quarters: array<vec2<u32>, SIZE>;

fn run(id: vec3<u32>, thread: u32) {
    let group = id.x;
    let row = id.y;
    let chunk = thread % CHUNKS;
    let first = group * GROUP + thread / CHUNKS * EACH * CHUNKS + chunk;
    // Loads under way together.
//each I 16
    let token_I = token_at(row, first + I * CHUNKS);
//end
    var own = NOTHING;
//each I 16
    own = better(own, token_I);
//end
    quarters[thread] = own;
    let top = best_of(own);
    if thread < CHUNKS {
        for (var other = thread + CHUNKS; other < SIZE; other += CHUNKS) {
            own = better(own, quarters[other]);
        }
        leaders[chunk_at(row, group, chunk)] = own;
    }
    let most = logit_of(top.x);
    var sum = 0.0;
//each I 16
    sum += select(0.0, exp(logit_of(token_I.x) - most), token_I.x != 0u);
//end
    sum = sum_of(sum);
    if thread == 0u {
        leaders[group_at(row, group)] = top;
        leaders[sum_at(row, group)] = vec2(bitcast<u32>(sum), 0u);
    }
}

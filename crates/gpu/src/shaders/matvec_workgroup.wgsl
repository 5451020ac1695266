// Sums up the lanes of a group through workgroup memory alone. A workgroup takes TURNS times GROUPS
// groups.

var<workgroup> partial: array<f32, SIZE * VALUES>;
var<workgroup> totals: array<f32, TURNS * GROUPS * VALUES>;

// The sum over the lanes of a group of the workgroup.
fn total(group: u32, value: u32) -> f32 {
    return totals[group * VALUES + value];
}

// What a token's sums are to be multiplied with.
fn factor(token: u32) -> f32 {
    if (p.normed == 0u) {
        return 1.0;
    }
    return 1.0 / sqrt(partial[token] / f32(p.inputs) + p.eps);
}

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let own = workgroup.y * grid.x + workgroup.x;
    let at = place(workgroup.z);
    let lane = thread % LANES;
    prepare(own, thread, at);
    for (var turn = 0u; turn < TURNS; turn++) {
        let group = turn * GROUPS + thread / LANES;
        let sums = products(own * TURNS * GROUPS + group, lane, at);
        for (var v = 0u; v < VALUES; v++) {
            partial[thread * VALUES + v] = sums[v];
        }
        for (var step = LANES / 2u; step > 0u; step /= 2u) {
            workgroupBarrier();
            if (lane < step) {
                for (var v = 0u; v < VALUES; v++) {
                    partial[thread * VALUES + v] += partial[(thread + step) * VALUES + v];
                }
            }
        }
        if (lane == 0u) {
            for (var v = 0u; v < VALUES; v++) {
                totals[group * VALUES + v] = partial[thread * VALUES + v];
            }
        }
        workgroupBarrier();
    }
    if (p.normed != 0u) {
        // Sums of squares take the place of what has been added up.
        for (var token = 0u; token < COLUMNS; token++) {
            var sum = 0.0;
            for (var i = thread; i < (p.chunks + 3u) / 4u; i += SIZE) {
                sum += dot(squares_of(at.x + min(token, at.tokens - 1u), i), vec4(1.0));
            }
            partial[thread * COLUMNS + token] = sum;
        }
        for (var step = SIZE / 2u; step > 0u; step /= 2u) {
            workgroupBarrier();
            if (thread < step) {
                for (var token = 0u; token < COLUMNS; token++) {
                    partial[thread * COLUMNS + token] += partial[(thread + step) * COLUMNS + token];
                }
            }
        }
        workgroupBarrier();
    }
    finish(own, thread, at);
}

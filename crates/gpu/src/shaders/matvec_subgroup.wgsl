// Sums up the lanes of a group: within subgroups by the hardware, among them through workgroup
// memory. A group has as many lanes as the largest subgroup, or more. A workgroup takes TURNS times
// GROUPS groups.

var<workgroup> partial: array<f32, PARTS * TURNS * VALUES>;
// Of each subgroup, parts of each token's sum of squares.
var<workgroup> squares: array<f32, PARTS * COLUMNS>;
// Subgroups of a group, of the workgroup, and of it those that have squares.
var<private> parts: u32;
var<private> subgroups: u32;
var<private> squaring: u32;

// The sum over the lanes of a group of the workgroup.
fn total(group: u32, value: u32) -> f32 {
    var sum = 0.0;
    for (var part = 0u; part < parts; part++) {
        sum += partial[(group * parts + part) * VALUES + value];
    }
    return sum;
}

// What a token's sums are to be multiplied with.
fn factor(token: u32) -> f32 {
    if (p.normed == 0u) {
        return 1.0;
    }
    var sum = 0.0;
    for (var i = 0u; i < squaring; i++) {
        sum += squares[i * COLUMNS + token];
    }
    return 1.0 / sqrt(sum / f32(p.inputs) + p.eps);
}

// The work of a workgroup. A thread is number `invocation` of its subgroup.
fn multiply(own: u32, at: Place, subgroup: u32, subgroup_size: u32, invocation: u32) {
    let thread = subgroup * subgroup_size + invocation;
    parts = LANES / subgroup_size;
    subgroups = SIZE / subgroup_size;
    let quads = (p.chunks + 3u) / 4u;
    squaring = min((quads + subgroup_size - 1u) / subgroup_size, subgroups);
    prepare(own, thread, at);
    //each T COLUMNS
    var square_T = 0.0;
    //end
    if (p.normed != 0u) {
        for (var i = thread; i < quads; i += SIZE) {
            //each T COLUMNS
            square_T += dot(squares_of(at.x + min(T, at.tokens - 1u), i), vec4(1.0));
            //end
        }
    }
    for (var turn = 0u; turn < TURNS; turn++) {
        let group = (own * TURNS + turn) * GROUPS + thread / LANES;
        let sums = products(group, thread % LANES, at);
        //each V VALUES
        let sum_V = subgroupAdd(sums[V]);
        //end
        if (invocation == 0u) {
            //each V VALUES
            partial[(turn * subgroups + subgroup) * VALUES + V] = sum_V;
            //end
        }
    }
    if (p.normed != 0u) {
        //each T COLUMNS
        let all_T = subgroupAdd(square_T);
        if (invocation == 0u) {
            squares[subgroup * COLUMNS + T] = all_T;
        }
        //end
    }
    workgroupBarrier();
    finish(own, thread, at);
}

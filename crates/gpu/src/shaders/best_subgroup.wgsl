// What is best among a workgroup's threads, and their sum: within subgroups by the hardware, among them
// through workgroup memory.

var<workgroup> bests: array<vec2<u32>, PARTS>;
var<workgroup> sums: array<f32, PARTS>;
var<private> subgroup: u32;
var<private> subgroups: u32;
var<private> is_first: bool;

fn best_of(own: vec2<u32>) -> vec2<u32> {
    let key = subgroupMax(own.x);
    let id = subgroupMin(select(NOTHING.y, own.y, own.x == key));
    if PARTS == 1u {
        return vec2(key, id);
    }
    // Those of the last time were read.
    workgroupBarrier();
    if is_first {
        bests[subgroup] = vec2(key, id);
    }
    workgroupBarrier();
    var best = bests[0];
    for (var part = 1u; part < subgroups; part += 1u) {
        best = better(best, bests[part]);
    }
    return best;
}

fn sum_of(own: f32) -> f32 {
    let part_sum = subgroupAdd(own);
    if PARTS == 1u {
        return part_sum;
    }
    if is_first {
        sums[subgroup] = part_sum;
    }
    workgroupBarrier();
    var sum = sums[0];
    for (var part = 1u; part < subgroups; part += 1u) {
        sum += sums[part];
    }
    return sum;
}

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(subgroup_id) subgroup_id: u32,
    @builtin(num_subgroups) num_subgroups: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    subgroup = subgroup_id;
    subgroups = num_subgroups;
    is_first = invocation == 0u;
    run(id, subgroup_id * subgroup_size + invocation);
}

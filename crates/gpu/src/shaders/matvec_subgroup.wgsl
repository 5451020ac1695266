// Sums up the lanes of a group: within subgroups by the hardware, among them through workgroup
// memory. A group has as many lanes as the largest subgroup, or more.

var<workgroup> partial: array<f32, PARTS * VALUES>;

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    let thread = subgroup * subgroup_size + invocation;
    let first = (workgroup.y * grid.x + workgroup.x) * GROUPS;
    let at = place(workgroup.z);
    let sums = products(first + thread / THREADS, thread % THREADS, at);
    //each V VALUES
    let sum_V = subgroupAdd(sums[V]);
    //end
    if (invocation == 0u) {
        //each V VALUES
        partial[subgroup * VALUES + V] = sum_V;
        //end
    }
    workgroupBarrier();
    let parts = THREADS / subgroup_size;
    for (var i = thread; i < GROUPS * VALUES; i += SIZE) {
        let group = i / VALUES;
        let value = i % VALUES;
        var sum = 0.0;
        for (var part = 0u; part < parts; part++) {
            sum += partial[(group * parts + part) * VALUES + value];
        }
        finish(first + group, value, sum, at);
    }
}

// Sums up the lanes of a group through workgroup memory alone.

var<workgroup> partial: array<f32, SIZE * VALUES>;

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    let first = (workgroup.y * grid.x + workgroup.x) * GROUPS;
    let at = place(workgroup.z);
    let lane = thread % THREADS;
    let sums = products(first + thread / THREADS, lane, at);
    for (var v = 0u; v < VALUES; v++) {
        partial[thread * VALUES + v] = sums[v];
    }
    for (var step = THREADS / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if (lane < step) {
            for (var v = 0u; v < VALUES; v++) {
                partial[thread * VALUES + v] += partial[(thread + step) * VALUES + v];
            }
        }
    }
    workgroupBarrier();
    for (var i = thread; i < GROUPS * VALUES; i += SIZE) {
        let group = i / VALUES;
        let value = i % VALUES;
        finish(first + group, value, partial[group * THREADS * VALUES + value], at);
    }
}

// What is best among a workgroup's threads, and their sum, through workgroup memory alone.

var<workgroup> bests: array<vec2<u32>, SIZE>;
var<workgroup> sums: array<f32, SIZE>;
var<private> own_thread: u32;

fn best_of(own: vec2<u32>) -> vec2<u32> {
    // Those of the last time were read.
    workgroupBarrier();
    bests[own_thread] = own;
    for (var step = SIZE / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if own_thread < step {
            bests[own_thread] = better(bests[own_thread], bests[own_thread + step]);
        }
    }
    workgroupBarrier();
    return bests[0];
}

fn sum_of(own: f32) -> f32 {
    sums[own_thread] = own;
    for (var step = SIZE / 2u; step > 0u; step /= 2u) {
        workgroupBarrier();
        if own_thread < step {
            sums[own_thread] += sums[own_thread + step];
        }
    }
    workgroupBarrier();
    return sums[0];
}

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(local_invocation_index) thread: u32,
) {
    own_thread = thread;
    run(id, thread);
}

// One matrix in a launch, with subgroups.

@compute @workgroup_size(SIZE)
fn main(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_size) subgroup_size: u32,
    @builtin(subgroup_invocation_id) invocation: u32,
) {
    let own = workgroup.y * grid.x + workgroup.x;
    multiply(own, place(workgroup.z), subgroup, subgroup_size, invocation);
}

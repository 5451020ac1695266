// The tiles of matmul_coop.wgsl as single numbers.

const UNIT = 1u;

var<workgroup> w_tile: array<f16, ROW_TILE * LINE>;
var<workgroup> x_tile: array<f16, TILE * LINE>;

fn put_w(at: u32, v: vec4<f16>) {
    w_tile[at] = v.x;
    w_tile[at + 1u] = v.y;
    w_tile[at + 2u] = v.z;
    w_tile[at + 3u] = v.w;
}

fn put_x(at: u32, v: vec4<f16>) {
    x_tile[at] = v.x;
    x_tile[at + 1u] = v.y;
    x_tile[at + 2u] = v.z;
    x_tile[at + 3u] = v.w;
}

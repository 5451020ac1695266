// The tiles of matmul_coop.wgsl as vectors, which are written in one go.

const UNIT = 4u;

var<workgroup> w_tile: array<vec4<f16>, ROW_TILE * LINE / UNIT>;
var<workgroup> x_tile: array<vec4<f16>, TILE * LINE / UNIT>;

fn put_w(at: u32, v: vec4<f16>) {
    w_tile[at / UNIT] = v;
}

fn put_x(at: u32, v: vec4<f16>) {
    x_tile[at / UNIT] = v;
}

// Copies one page of a layer's keys and values to another page. Grid: words of a page / 256.

struct Params {
    source: u32,
    to: u32,
    // Words of a page.
    words: u32,
}

var<immediate> params: Params;
@group(0) @binding(1) var<storage, read_write> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.words {
        keys[params.to * params.words + id.x] = keys[params.source * params.words + id.x];
        values[params.to * params.words + id.x] = values[params.source * params.words + id.x];
    }
}

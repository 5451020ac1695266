// Activations as integers of 8 bits: in each chunk of 32 the largest becomes 127 or -127.
//
// A token's chunks lie in planes, so that lanes which take two neighbouring chunks each read
// neighbouring memory: the first 16 integers of even chunks, the other 16 of those, the same of odd
// chunks; then two words for each chunk: its scale, and the sums of both halves as f16, which is exact;
// then, where a product leaves the division by the root mean square to the next one, the sum of squares
// of each chunk, filled up with zeros to fours. Eight threads share a chunk.

var<workgroup> chunk_most: array<f32, THREADS>;
var<workgroup> chunk_sums: array<i32, THREADS>;

// Writes four integers, of features 4 * part on of chunk `c` of `chunks`, to the words of a token
// that begin at `base`. All threads must call it, with `valid` unset where they have nothing.
fn store_integers(v: vec4<f32>, valid: bool, base: u32, chunks: u32, c: u32, thread: u32) {
    let part = thread % 8u;
    let size = abs(v);
    workgroupBarrier();
    chunk_most[thread] = max(max(size.x, size.y), max(size.z, size.w));
    workgroupBarrier();
    var most = 0.0;
    for (var k = 0u; k < 8u; k++) {
        most = max(most, chunk_most[(thread & ~7u) + k]);
    }
    let scale = most / 127.0;
    let inverse = select(0.0, 127.0 / most, most > 0.0);
    let n = vec4<i32>(round(v * inverse));
    chunk_sums[thread] = n.x + n.y + n.z + n.w;
    workgroupBarrier();
    if (!valid) {
        return;
    }
    let pairs = (chunks + 1u) / 2u;
    let plane = 2u * (c % 2u) + part / 4u;
    integers[base + 4u * (plane * pairs + c / 2u) + part % 4u] = pack4xI8(n);
    if (part == 0u) {
        var low = 0;
        var high = 0;
        for (var k = 0u; k < 4u; k++) {
            low += chunk_sums[thread + k];
            high += chunk_sums[thread + 4u + k];
        }
        let at = base + 16u * pairs + 2u * c;
        integers[at] = bitcast<u32>(scale);
        integers[at + 1u] = pack2x16float(vec2(f32(low), f32(high)));
    }
}

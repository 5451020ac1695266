// Codes of 4 bits: a chunk is one vec4, its lower halves of bytes the first 16 weights, the upper
// ones the others.

fn codes(row: u32, c: u32, half: u32) -> vec4<u32> {
    let i = row * p.chunks + c;
    return (w[i] >> vec4(half * 4u)) & vec4(0x0f0f0f0fu);
}

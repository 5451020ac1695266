// Codes of 5 bits: four as in matmul_codes4.wgsl; the fifth of weight 4k + j is bit k of byte j of
// the chunk's word in the plane of high bits.

fn codes(row: u32, c: u32, half: u32) -> vec4<u32> {
    let i = row * p.chunks + c;
    let low = (w[i] >> vec4(half * 4u)) & vec4(0x0f0f0f0fu);
    let high = vec4(word(p.high_at + i) >> (half * 4u)) >> vec4(0u, 1u, 2u, 3u);
    return low | ((high & vec4(0x01010101u)) << vec4(4u));
}

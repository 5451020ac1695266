// Codes of 6 bits: four as in matmul_codes4.wgsl; the other two of weight 4k + j are bits 2k and
// 2k + 1 of byte j of the half's word in the plane of high bits.

fn codes(row: u32, c: u32, half: u32) -> vec4<u32> {
    let i = row * p.chunks + c;
    let low = (w[i] >> vec4(half * 4u)) & vec4(0x0f0f0f0fu);
    let high = vec4(word(p.high_at + 2u * i + half)) >> vec4(0u, 2u, 4u, 6u);
    return low | ((high & vec4(0x03030303u)) << vec4(4u));
}

// Codes of 4 bits that stand for floats of 4 bits (E2M1), doubled: 0 1 2 3 4 6 8 12 and their
// negatives. The code of minus zero does not occur.

fn codes(row: u32, c: u32, half: u32) -> vec4<u32> {
    let i = row * p.chunks + c;
    let q = w[i] >> vec4(half * 4u);
    let m = q & vec4(0x07070707u);
    let low = vec4(0x01010101u);
    // From code 5 on steps are larger: 5, 6, 7 become 6, 8, 12.
    let b0 = m & (m >> vec4(2u)) & low;
    let b1 = (m >> vec4(1u)) & (m >> vec4(2u)) & low;
    let v = m + b0 + ((b1 + (b1 & b0)) << vec4(1u));
    // Two's complement in each byte; no byte carries, since a negative one is not zero.
    let sign = (q >> vec4(3u)) & low;
    return (v ^ (sign * 255u)) + sign;
}

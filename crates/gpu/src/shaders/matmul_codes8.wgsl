// Codes of 8 bits, signed. The halves of a row's chunks lie apart, so that neighbours read
// neighbouring memory.

fn codes(row: u32, c: u32, half: u32) -> vec4<u32> {
    return w[(2u * row + half) * p.chunks + c];
}

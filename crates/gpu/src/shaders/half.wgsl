// Half precision without the feature of that name. `pack2x16float` may round as it likes; this
// rounds to the nearest, ties to even, as everything else that writes a KV cache does.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let size = bits & 0x7fffffffu;
    if size > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if size >= 0x477ff000u {
        return sign | 0x7c00u;
    }
    if size >= 0x38800000u {
        return sign | ((size - 0x38000000u + 0xfffu + ((size >> 13u) & 1u)) >> 13u);
    }
    if size < 0x33000000u {
        return sign;
    }
    // Subnormal: the mantissa with its leading one, shifted to units of 2^-24.
    let shift = 126u - (size >> 23u);
    let mantissa = (size & 0x7fffffu) | 0x800000u;
    let whole = mantissa >> shift;
    let rest = mantissa & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    let up = rest > tie || (rest == tie && (whole & 1u) == 1u);
    return sign | (whole + select(0u, 1u, up));
}

fn half_pair(x: f32, y: f32) -> u32 { return half_bits(x) | (half_bits(y) << 16u); }

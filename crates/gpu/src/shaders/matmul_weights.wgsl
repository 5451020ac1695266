// Half a chunk of quantized weights, 16 of them: read first, made floats later, so that there may be
// other work while memory answers.

struct Raw {
    codes: vec4<u32>,
    scales: vec3<f32>,
}

fn fetch(row: u32, c: u32, half: u32) -> Raw {
    return Raw(codes(row, c, half), scales(row * p.chunks + c));
}

fn decode(raw: Raw, half: u32) -> array<vec4<f32>, 4> {
    let scale = select(raw.scales.x, raw.scales.y, half == 1u);
    let least = vec4(raw.scales.z - scale * f32(OFFSET));
    return array(
        scale * vec4<f32>(unpack4xI8(raw.codes.x)) + least,
        scale * vec4<f32>(unpack4xI8(raw.codes.y)) + least,
        scale * vec4<f32>(unpack4xI8(raw.codes.z)) + least,
        scale * vec4<f32>(unpack4xI8(raw.codes.w)) + least,
    );
}

use half::f16;

use super::attention::{ATTENTION_COOP, Team};
use crate::testing::{Random, gpu};
use crate::{Access, Constant, Shader};

/// Values of every exponent around those of f16, ties among them, and what is no number.
fn floats() -> Vec<f32> {
    let mut values = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-45];
    let mut random = Random(3);
    for exponent in -28..18 {
        for _ in 0..40 {
            values.push(random.float() * 2f32.powi(exponent));
        }
        for eighths in 8..16 {
            // 2048 and 4096 have ties at the last bit of f16 and below.
            let exact = (2048.0 + 0.5 * eighths as f32) * 2f32.powi(exponent - 11);
            values.extend([
                exact,
                -exact,
                exact * (1.0 + f32::EPSILON),
                exact * (1.0 - f32::EPSILON),
            ]);
        }
    }
    values.resize(values.len().next_multiple_of(128), 1.0);
    values
}

#[test]
fn half_precision_is_rounded_as_everywhere_else() {
    let gpu = gpu(true);
    let main = "
        @group(0) @binding(0) var<storage, read> x: array<f32>;
        @group(0) @binding(1) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(global_invocation_id) id: vec3<u32>) {
            y[id.x] = half_pair(x[2u * id.x], x[2u * id.x + 1u]);
        }";
    let shader = Shader {
        name: "halves",
        source: [include_str!("../shaders/half.wgsl"), main].concat().into(),
        bindings: &[Access::Read, Access::Write],
        ..Shader::default()
    };
    let values = floats();
    let [x, y] = [1, 2].map(|_| gpu.buffer_of("values", &values).unwrap());
    let kernel = gpu.kernel(&shader).unwrap();
    let group = kernel.bind(&gpu, &[x.as_entire_buffer_binding(), y.as_entire_buffer_binding()]);
    let groups = (values.len() / 128) as u32;
    gpu.submit("halves", |pass| kernel.dispatch(pass, &group, &[], [groups, 1, 1])).unwrap();
    let found: Vec<u16> = gpu.read(&y, 0..values.len()).unwrap();
    for (value, found) in values.iter().zip(found) {
        let (found, expected) = (f16::from_bits(found), f16::from_f32(*value));
        let is_same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
        assert!(is_same, "{value:e}: {found:e}, not {expected:e}");
    }
}

#[test]
fn attention_through_cooperative_matrices_is_valid() {
    use wgpu::naga::{front::wgsl, valid};
    for frags in [1, 5, 8] {
        let number = |name, n| (name, Constant::Uint(n));
        let constants = [
            number("FRAGS", frags),
            number("HEAD_DIM", 16 * frags),
            number("CHUNKS", 2 * frags),
            ("WINDOWED", true.into()),
            ("BOTH_WAYS", false.into()),
            ("CAPPED", true.into()),
            ("SINKS", true.into()),
        ];
        let mut params = vec![Constant::Uint(1); 17];
        for float in [8, 9, 14, 15, 16] {
            params[float] = 1.0.into();
        }
        let source = ATTENTION_COOP.text(&constants, &params).into();
        let enables = ATTENTION_COOP.enables;
        let shader = Shader { source, enables, constants: &constants, ..Shader::default() };
        let text = shader.text();
        let module = wgsl::parse_str(&text)
            .unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
        valid::Validator::new(valid::ValidationFlags::all(), valid::Capabilities::all())
            .validate(&module)
            .unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
    }
}

#[test]
fn attention_to_single_tokens_fits_into_the_least_workgroup_memory() {
    let bytes = |heads| Team { heads, threads: 128 }.bytes();
    assert!(bytes(1) < bytes(2) && bytes(2) <= 16 << 10);
    assert!(bytes(4) <= 32 << 10, "what most devices have suffices for the most heads");
    // It is taken without a look at the limits.
    assert!(Team::NARROW.bytes() <= 16 << 10 && Team::NARROW.threads <= 256);
}

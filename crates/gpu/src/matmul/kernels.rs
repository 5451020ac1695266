//! The kernels of products: which files of WGSL make one up, and with which constants.

use std::sync::Arc;

use super::form::Form;
use super::text::unroll;
use super::variant::{Finish, PARAMETERS, Parameters, Tokens, Variant, Vector, constant};
use crate::{Access, Constant, Gpu, GpuError, Kernel, Shader};

macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!("../shaders/", $name, ".wgsl"))
    };
}

/// The kernel of a variant for weights of a form, with these parameters.
pub(super) fn kernel(
    gpu: &Gpu,
    form: Form,
    variant: Variant,
    p: &Parameters,
) -> Result<Arc<Kernel>, GpuError> {
    let given = match variant.fixed(p) {
        Some(fixed) => format!("var<immediate> tokens: u32;\n{}", constant("p", &fixed)),
        None => "var<immediate> p: Params;\n".to_owned(),
    };
    with_shader(form, variant, &given, gpu.features().subgroups, |shader| gpu.kernel(shader))
}

/// Calls `then` with the shader of a variant; `given` declares its parameters.
fn with_shader<R>(
    form: Form,
    variant: Variant,
    given: &str,
    subgroups: Option<(u32, u32)>,
    then: impl FnOnce(&Shader<'_>) -> R,
) -> R {
    let mut sources = vec![shader!("matmul_params"), given, shader!("matmul_matrix")];
    let mut constants = Vec::new();
    let mut bindings = vec![Access::Read, Access::Read, Access::Write];
    if let Variant::Vector(_, _, finish @ (Finish::Norm | Finish::Gate(_)), _) = variant {
        bindings.push(Access::Write);
        if finish == Finish::Norm {
            bindings.push(Access::Read);
        }
    }
    if let Variant::Vector(_, Tokens::Chosen, ..)
    | Variant::Tiled(Tokens::Chosen)
    | Variant::Cooperative(_, Tokens::Chosen) = variant
    {
        constants.push(("CHOSEN", (bindings.len() as u32).into()));
        bindings.push(Access::Read);
    }
    let tiles = |tokens| match tokens {
        Tokens::All => shader!("matmul_tokens"),
        Tokens::Chosen => shader!("matmul_grouped"),
    };
    match variant {
        Variant::Vector(vector, tokens, finish, even) => {
            sources.push(shader!("matvec_place"));
            sources.push(match tokens {
                Tokens::All => shader!("matmul_one"),
                Tokens::Chosen => shader!("matmul_experts"),
            });
            sources.push(match (form.is_float(), even) {
                (true, true) => shader!("matvec_fours"),
                (true, false) => shader!("matvec_singles"),
                (false, _) => shader!("matvec_integers"),
            });
            sources.extend(of_few(form, finish, subgroups.is_some()));
            sources.extend(match finish {
                Finish::Store => vec![shader!("matvec_results")],
                Finish::Norm => vec![shader!("integers")],
                Finish::Gate(_) => vec![shader!("activate"), shader!("integers")],
            });
            if subgroups.is_some() {
                sources.push(shader!("matvec_main"));
            }
            constants.extend(constants_of_few(form, &vector, finish, even, subgroups));
        }
        Variant::Lookup => {
            sources.extend(form.source());
            sources.extend([decoding(form), shader!("matmul_lookup")]);
            constants.extend(form.constants());
        }
        Variant::Tiled(tokens) => {
            sources.extend(form.source());
            sources.extend([decoding(form), tiles(tokens), shader!("matmul_tiled")]);
            constants.extend(form.constants());
        }
        Variant::Cooperative(shape, tokens) => {
            sources.extend(form.source());
            constants.extend(form.constants());
            let memory = match shape.vectors {
                true => shader!("matmul_coop_vectors"),
                false => shader!("matmul_coop_scalars"),
            };
            sources.extend([decoding(form), tiles(tokens), memory]);
            sources.push(shader!("matmul_coop"));
            let (rows, tokens) = shape.tile();
            let size = shape.sub_rows * shape.sub_tokens * subgroups.map_or(1, |(min, _)| min);
            constants.extend([
                ("EDGE", shape.edge.into()),
                ("STEPS", (32 / shape.edge).into()),
                ("SUB_ROWS", shape.sub_rows.into()),
                ("SUB_TOKENS", shape.sub_tokens.into()),
                ("ROWS", shape.rows.into()),
                ("COLUMNS", shape.columns.into()),
                ("ROW_TILE", rows.into()),
                ("TILE", tokens.into()),
                ("SIZE", size.into()),
                ("W_UNITS", (2 * rows / size).into()),
                ("X_UNITS", (4 * tokens / size).into()),
            ]);
        }
    }
    let is_cooperative = matches!(variant, Variant::Cooperative(..));
    let mut source = unroll(&sources.join("\n"), &constants);
    if matches!(variant, Variant::Cooperative(shape, _) if shape.edge == 8) {
        source = source.replace("coop_mat16x16", "coop_mat8x8");
    }
    then(&Shader {
        name: "product",
        source: source.into(),
        enables: if is_cooperative { &["f16", "wgpu_cooperative_matrix"] } else { &[] },
        constants: &constants,
        bindings: &bindings,
        immediates: variant.immediates(&[0; PARAMETERS]).len() as u32,
        // Rows of weights, tokens and places of tiles are cut to what there is before they are used or
        // are whole blocks of it,
        // chunks are counted up to their number, and results beyond the edges are not stored.
        unchecked: true,
    })
}

/// What makes up a product of few tokens, but for where its activations are and what is done first.
pub(super) fn of_few(form: Form, finish: Finish, subgroups: bool) -> Vec<&'static str> {
    let mut sources = form.source();
    sources.push(if form.is_float() { shader!("matvec_float") } else { shader!("matvec") });
    sources.push(match finish {
        Finish::Store => shader!("matvec_finish"),
        Finish::Norm => shader!("matvec_norm"),
        Finish::Gate(_) => shader!("matvec_gate"),
    });
    sources.push(match subgroups {
        true => shader!("matvec_subgroup"),
        false => shader!("matvec_workgroup"),
    });
    sources
}

/// The constants that this WGSL reads.
pub(super) fn constants_of_few(
    form: Form,
    vector: &Vector,
    finish: Finish,
    even: bool,
    subgroups: Option<(u32, u32)>,
) -> Vec<(&'static str, Constant)> {
    let mut constants = form.constants();
    if let Finish::Gate(kind) = finish {
        constants.push(("GATE", kind.into()));
    }
    let parts = subgroups.map_or(1, |(min, _)| vector.size / min);
    constants.extend([
        ("EVEN", even.into()),
        ("LANES", vector.threads.into()),
        ("ROWS", vector.rows.into()),
        ("COLUMNS", vector.columns.into()),
        ("VALUES", (vector.rows * vector.columns).into()),
        ("SIZE", vector.size.into()),
        ("GROUPS", (vector.size / vector.threads).into()),
        ("TURNS", vector.turns.into()),
        ("PARTS", parts.into()),
    ]);
    constants
}

/// A kernel of a mixture besides the products: bindings that are read, then one or two written.
pub(super) fn of_mixture(
    gpu: &Gpu,
    source: &str,
    bindings: &[Access],
    words: usize,
    constants: &[(&str, Constant)],
) -> Result<Arc<Kernel>, GpuError> {
    gpu.kernel(&Shader {
        name: "mixture",
        source: source.into(),
        constants,
        bindings,
        immediates: (words * size_of::<u32>()) as u32,
        ..Default::default()
    })
}

/// The kernel that makes activations integers.
pub(super) fn quantize(gpu: &Gpu) -> Result<Arc<Kernel>, GpuError> {
    gpu.kernel(&Shader {
        name: "quantize",
        source: concat!(shader!("quantize"), shader!("integers")).into(),
        bindings: &[Access::Read, Access::Write],
        immediates: 16,
        ..Default::default()
    })
}

/// The kernel that makes activations halves.
pub(super) fn halve(gpu: &Gpu) -> Result<Arc<Kernel>, GpuError> {
    gpu.kernel(&Shader {
        name: "halve",
        source: shader!("halve").into(),
        enables: &["f16"],
        bindings: &[Access::Read, Access::Write],
        immediates: 16,
        ..Default::default()
    })
}

/// How a form's weights become floats, half a chunk at a time.
fn decoding(form: Form) -> &'static str {
    match form.is_float() {
        true => shader!("matmul_float_weights"),
        false => shader!("matmul_weights"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matmul::form::{Codes, Scales};
    use crate::matmul::variant::Cooperative;

    /// No renderer in software has cooperative matrices, so that these kernels are only read.
    #[test]
    fn kernels_of_cooperative_matrices_are_valid() {
        use wgpu::naga::{front::wgsl, valid};
        let quantized = Form::Quantized { codes: Codes::Four, scales: Scales::K, offset: 0 };
        for form in [quantized, Form::BF16, Form::F32] {
            for (edge, vectors, tokens) in [(8, false, Tokens::All), (16, true, Tokens::Chosen)] {
                let (rows, columns) = (32 / edge, 64 / edge);
                let shape =
                    Cooperative { edge, sub_rows: 2, sub_tokens: 2, rows, columns, vectors };
                assert!(shape.divides(32));
                let variant = Variant::Cooperative(shape, tokens);
                let given = "var<immediate> p: Params;\n";
                let text = with_shader(form, variant, given, Some((32, 32)), |s| s.text());
                let module = wgsl::parse_str(&text)
                    .unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
                valid::Validator::new(valid::ValidationFlags::all(), valid::Capabilities::all())
                    .validate(&module)
                    .unwrap_or_else(|error| panic!("{}", error.emit_to_string(&text)));
            }
        }
    }
}

//! What each operation takes: the table that the verifier and the builder go by.
//!
//! After the operation set of iOS 18. Operations of control flow, of recurrent layers and of images
//! are left out: no decoder needs them.

use std::collections::HashMap;
use std::sync::LazyLock;

/// What a parameter takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A tensor of any type.
    Tensor,
    /// A tensor of 16- or 32-bit integers.
    Ints,
    /// A tensor of truth values.
    Bools,
    /// A text.
    Text,
    /// Any number of tensors.
    Tensors,
    /// A state.
    State,
}

/// One parameter of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// Whether it may be left out.
    pub optional: bool,
    /// Whether its value must be known before the function runs.
    pub constant: bool,
}

/// What one operation takes and how many results it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The parameters.
    pub parameters: Vec<Parameter>,
    /// Least and greatest number of results.
    pub outputs: (usize, usize),
}

impl Signature {
    /// The signature of an operation; none if it is not known.
    pub fn of(op: &str) -> Option<&'static Signature> {
        TABLE.get(op)
    }

    /// The parameter of that name.
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// The operations that are known, in the order of their names.
    pub fn all() -> Vec<&'static str> {
        let mut names: Vec<_> = TABLE.keys().copied().collect();
        names.sort_unstable();
        names
    }
}

/// `operations: parameters`, where `?` marks one that may be left out, `!` one that must be constant,
/// and a word behind it what it takes if that is no tensor of any type.
const SIGNATURES: &str = "
const:
identity exp sqrt sigmoid silu tanh softsign relu erf cos sin abs logical_not shape: x
add sub mul real_div maximum minimum pow: x, y
greater greater_equal less less_equal equal not_equal logical_and logical_or: x, y
rsqrt: x, epsilon?!
gelu: x, mode?! text
clip: x, alpha!, beta!
leaky_relu: x, alpha!
cast: x, dtype! text
select: cond bools, a, b
softmax: x, axis?! ints
reduce_mean reduce_sum reduce_max reduce_min reduce_sum_square: x, axes?! ints, keep_dims?! bools
reduce_argmax: x, axis?! ints, keep_dims?! bools, output_dtype?! text
topk: x, k?!, axis?! ints, ascending?! bools, sort?! bools, return_indices?! bools, output_indices_dtype?! text
layer_norm: x, axes?! ints, gamma?!, beta?!, epsilon?!
l2_norm: x, epsilon?!
linear: x, weight!, bias?!
matmul: x, y, transpose_x?! bools, transpose_y?! bools
conv: x, weight, bias?, strides?! ints, pad_type?! text, pad?! ints, dilations?! ints, groups?! ints
gather: x, indices, axis?! ints, batch_dims?! ints, validate_indices?! bools
reshape: x, shape
transpose: x, perm! ints
expand_dims: x, axes! ints
squeeze: x, axes?! ints
concat: values tensors, axis! ints, interleave?! bools
stack: values tensors, axis! ints
split: x, num_splits?! ints, split_sizes?! ints, axis! ints
tile: x, reps ints
pad: x, pad ints, mode?! text, constant_val?!
fill: shape ints, value?!
range_1d: end, start, step
slice_by_index: x, begin, end, stride?!, begin_mask?! bools, end_mask?! bools, squeeze_mask?! bools
slice_by_size: x, begin, size
slice_update: x, update, begin, end, stride?!, begin_mask?! bools, end_mask?! bools, squeeze_mask?! bools
scaled_dot_product_attention: query, key, value, attn_mask?
constexpr_blockwise_shift_scale: data!, scale!, offset?!
constexpr_lut_to_dense: indices!, lut!, vector_axis?! ints
read_state: input state
write_state: input state, data
";

static TABLE: LazyLock<HashMap<&'static str, Signature>> = LazyLock::new(|| {
    let mut table = HashMap::new();
    for line in SIGNATURES.lines().filter(|line| !line.is_empty()) {
        let (names, parameters) = line.split_once(':').expect("operations and parameters");
        let parameters = parameters.split(',').filter(|p| !p.trim().is_empty()).map(parameter);
        let parameters: Vec<Parameter> = parameters.collect();
        for name in names.split_whitespace() {
            let outputs = match name {
                "write_state" => (0, 0),
                "topk" => (1, 2),
                "split" => (1, usize::MAX),
                _ => (1, 1),
            };
            table.insert(name, Signature { parameters: parameters.clone(), outputs });
        }
    }
    table
});

fn parameter(text: &'static str) -> Parameter {
    let mut words = text.split_whitespace();
    let marked = words.next().expect("a name");
    let kind = match words.next() {
        None => Kind::Tensor,
        Some("ints") => Kind::Ints,
        Some("bools") => Kind::Bools,
        Some("text") => Kind::Text,
        Some("tensors") => Kind::Tensors,
        Some("state") => Kind::State,
        Some(other) => unreachable!("no kind {other}"),
    };
    Parameter {
        name: marked.trim_end_matches(['?', '!']),
        kind,
        optional: marked.contains('?'),
        constant: marked.contains('!'),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_reads_as_it_is_written() {
        let conv = Signature::of("conv").unwrap();
        assert_eq!(conv.parameters.len(), 8);
        let strides = conv.parameter("strides").unwrap();
        assert_eq!((strides.kind, strides.optional, strides.constant), (Kind::Ints, true, true));
        let bias = conv.parameter("bias").unwrap();
        assert_eq!((bias.kind, bias.optional, bias.constant), (Kind::Tensor, true, false));
        assert_eq!(Signature::of("const").unwrap().parameters, []);
        assert!(Signature::of("lstm").is_none());
        assert!(Signature::all().is_sorted() && Signature::all().len() > 60);
    }
}

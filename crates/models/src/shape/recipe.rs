//! Which type each tensor of a file has, when llama.cpp's quantizer makes one of a given kind.

use baton_weights::DType;

/// A kind of file.
#[derive(Debug, PartialEq)]
pub struct Recipe {
    /// What people call it, in small letters.
    pub name: &'static str,
    /// The type of tensors that have no type of their own.
    pub base: DType,
    /// What `general.file_type` says.
    pub file_type: u32,
    more: More,
}

/// Where some tensors get a better type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum More {
    /// Nowhere.
    No,
    /// Values and down projections of the first layers: a little.
    Small,
    /// Values and down projections of the first and last eighth of the layers, and of every third
    /// between: Q6_K.
    Medium,
}

const fn recipe(name: &'static str, base: DType, file_type: u32, more: More) -> Recipe {
    Recipe { name, base, file_type, more }
}

/// All kinds.
pub static RECIPES: [Recipe; 13] = [
    recipe("f32", DType::F32, 0, More::No),
    recipe("f16", DType::F16, 1, More::No),
    recipe("bf16", DType::BF16, 32, More::No),
    recipe("q4_0", DType::Q4_0, 2, More::No),
    recipe("q4_1", DType::Q4_1, 3, More::No),
    recipe("q5_0", DType::Q5_0, 8, More::No),
    recipe("q5_1", DType::Q5_1, 9, More::No),
    recipe("q8_0", DType::Q8_0, 7, More::No),
    recipe("q4_k_s", DType::Q4_K, 14, More::Small),
    recipe("q4_k_m", DType::Q4_K, 15, More::Medium),
    recipe("q5_k_s", DType::Q5_K, 16, More::No),
    recipe("q5_k_m", DType::Q5_K, 17, More::Medium),
    recipe("q6_k", DType::Q6_K, 18, More::No),
];

/// What a matrix is for, as far as its type depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The output matrix, or the embedding that serves as one.
    Head,
    /// Attention's values.
    Value,
    /// The feed-forward's way back.
    Down,
    /// Any other.
    Other,
}

impl Recipe {
    /// The type of a matrix of rows of `cols` elements in layer `layer` of `layers`.
    pub fn dtype(&self, role: Role, cols: usize, layer: usize, layers: usize) -> DType {
        if self.base.is_float() {
            return self.base;
        }
        let wanted = match role {
            Role::Head if self.base == DType::Q8_0 => DType::Q8_0,
            Role::Head => DType::Q6_K,
            Role::Value => self.value(layer, layers),
            Role::Down => self.down(layer, layers),
            Role::Other => self.base,
        };
        fitting(wanted, cols)
    }

    fn value(&self, layer: usize, layers: usize) -> DType {
        let dtype = match self.more {
            More::Medium if is_favoured(layer, layers) => DType::Q6_K,
            More::Small if layer < 4 => DType::Q5_K,
            _ => self.base,
        };
        // Models of 80 layers are known to share values among many heads.
        if layers == 80 && dtype == DType::Q4_K { DType::Q5_K } else { dtype }
    }

    fn down(&self, layer: usize, layers: usize) -> DType {
        match self.more {
            More::Medium if is_favoured(layer, layers) => DType::Q6_K,
            More::Small if layer < layers / 8 => DType::Q5_K,
            _ => self.base,
        }
    }
}

fn is_favoured(layer: usize, layers: usize) -> bool {
    let eighth = layers / 8;
    layer < eighth || layer >= 7 * layers / 8 || (layer - eighth) % 3 == 2
}

/// The type, or one of smaller blocks for rows that are no whole number of its own.
fn fitting(dtype: DType, cols: usize) -> DType {
    if cols.is_multiple_of(dtype.block_len()) {
        return dtype;
    }
    let smaller = match dtype {
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        _ => DType::Q8_0,
    };
    if cols.is_multiple_of(smaller.block_len()) { smaller } else { DType::F16 }
}

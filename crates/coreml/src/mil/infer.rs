//! Shape and type inference: what an operation yields, or why its operands do not fit.

pub(crate) mod shapes;
pub(crate) mod slices;

use super::types::{DataType, TensorType};
use super::value::Value;

/// One operand as inference sees it.
#[derive(Clone, Debug)]
pub struct Operand<'a> {
    /// The tensor's type; that of what it holds for a state.
    pub ty: TensorType,
    /// Its value, where that is known and lies in the program.
    pub value: Option<&'a Value>,
}

/// The result of inference, with a text that says what does not fit.
pub(super) type Inferred<T> = Result<T, String>;

/// The types of the results of the operation `op`, whose operands `lookup` finds by their parameter.
/// Constants, whose type is what they say, have none to infer.
///
/// # Errors
/// What does not fit, or that the operation is not known.
pub fn infer<'a>(
    op: &str,
    lookup: &dyn Fn(&str) -> Option<Vec<Operand<'a>>>,
) -> Result<Vec<TensorType>, String> {
    let args = Args { lookup };
    let one = |ty: TensorType| Ok(vec![ty]);
    match op {
        "identity" => one(args.tensor("x")?),
        "read_state" => one(args.tensor("input")?),
        "exp" | "sqrt" | "rsqrt" | "sigmoid" | "silu" | "tanh" | "softsign" | "erf" | "cos"
        | "sin" | "gelu" | "clip" | "leaky_relu" | "l2_norm" => one(args.float("x")?),
        "relu" | "abs" => one(args.tensor("x")?),
        "softmax" => {
            let x = args.float("x")?;
            args.axis("axis", Some(-1), x.shape.len())?;
            one(x)
        }
        "layer_norm" => args.layer_norm().and_then(one),
        "logical_not" => one(args.of("x", DataType::Bool)?),
        "add" | "sub" | "mul" | "real_div" | "maximum" | "minimum" | "pow" => {
            one(args.broadcast("x", "y")?)
        }
        "greater" | "greater_equal" | "less" | "less_equal" | "equal" | "not_equal" => {
            one(TensorType { dtype: DataType::Bool, ..args.broadcast("x", "y")? })
        }
        "logical_and" | "logical_or" => {
            args.of("x", DataType::Bool)?;
            one(args.broadcast("x", "y")?)
        }
        "select" => {
            let (cond, branches) = (args.of("cond", DataType::Bool)?, args.broadcast("a", "b")?);
            let shape = shapes::broadcast(&cond.shape, &branches.shape)?;
            one(TensorType { shape, ..branches })
        }
        "cast" => {
            let dtype = args.dtype("dtype", None)?;
            one(TensorType { dtype, ..args.tensor("x")? })
        }
        "shape" => one(TensorType::new(DataType::Int32, &[args.tensor("x")?.shape.len()])),
        "reduce_mean" | "reduce_sum" | "reduce_max" | "reduce_min" | "reduce_sum_square" => {
            args.reduce().and_then(one)
        }
        "reduce_argmax" => args.argmax().and_then(one),
        "topk" => args.topk(),
        "linear" => args.linear().and_then(one),
        "matmul" => args.matmul().and_then(one),
        "conv" => args.conv().and_then(one),
        "gather" => args.gather().and_then(one),
        "scaled_dot_product_attention" => args.attention().and_then(one),
        "reshape" => args.reshape().and_then(one),
        "transpose" => args.transpose().and_then(one),
        "expand_dims" => args.expand_dims().and_then(one),
        "squeeze" => args.squeeze().and_then(one),
        "concat" => args.concat().and_then(one),
        "stack" => args.stack().and_then(one),
        "split" => args.split(),
        "tile" => args.tile().and_then(one),
        "pad" => args.pad().and_then(one),
        "fill" => args.fill().and_then(one),
        "range_1d" => args.range().and_then(one),
        "slice_by_index" => args.slice_by_index().and_then(one),
        "slice_by_size" => args.slice_by_size().and_then(one),
        "slice_update" => args.slice_update().and_then(one),
        "constexpr_blockwise_shift_scale" => args.shift_scale().and_then(one),
        "constexpr_lut_to_dense" => args.lut_to_dense().and_then(one),
        "write_state" => {
            let (state, data) = (args.tensor("input")?, args.tensor("data")?);
            if state != data {
                return Err(format!("writes {data} into a state of {state}"));
            }
            Ok(Vec::new())
        }
        _ => Err(format!("operation {op:?} is not known")),
    }
}

/// The operands of one operation.
struct Args<'a, 'f> {
    lookup: &'f dyn Fn(&str) -> Option<Vec<Operand<'a>>>,
}

impl<'a> Args<'a, '_> {
    fn operand(&self, name: &str) -> Inferred<Operand<'a>> {
        self.optional(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    fn optional(&self, name: &str) -> Inferred<Option<Operand<'a>>> {
        match (self.lookup)(name) {
            None => Ok(None),
            Some(operands) => match <[Operand<'a>; 1]>::try_from(operands) {
                Ok([operand]) => Ok(Some(operand)),
                Err(operands) => Err(format!("{name} has {} operands, not one", operands.len())),
            },
        }
    }

    fn tensor(&self, name: &str) -> Inferred<TensorType> {
        Ok(self.operand(name)?.ty)
    }

    fn float(&self, name: &str) -> Inferred<TensorType> {
        let ty = self.tensor(name)?;
        match ty.dtype {
            DataType::Float16 | DataType::Float32 => Ok(ty),
            _ => Err(format!("{name} is {ty}, not of fp16 or fp32")),
        }
    }

    fn of(&self, name: &str, dtype: DataType) -> Inferred<TensorType> {
        let ty = self.tensor(name)?;
        if ty.dtype == dtype { Ok(ty) } else { Err(format!("{name} is {ty}, not of {dtype}")) }
    }

    /// Two tensors of one element type, in the shape that both stretch to.
    fn broadcast(&self, a: &str, b: &str) -> Inferred<TensorType> {
        let (x, y) = (self.tensor(a)?, self.tensor(b)?);
        if x.dtype != y.dtype {
            return Err(format!("{a} is {x}, {b} is {y}: the element types differ"));
        }
        Ok(TensorType { dtype: x.dtype, shape: shapes::broadcast(&x.shape, &y.shape)? })
    }

    /// One number of any type, if it is given.
    fn single(&self, name: &str) -> Inferred<Option<TensorType>> {
        match self.optional(name)?.map(|operand| operand.ty) {
            Some(ty) if ty.elements() != Some(1) => Err(format!("{name} is {ty}, no single value")),
            ty => Ok(ty),
        }
    }

    /// Integers that are known.
    fn ints(&self, name: &str) -> Inferred<Option<Vec<i64>>> {
        let Some(operand) = self.optional(name)? else { return Ok(None) };
        match operand.value.and_then(Value::as_ints) {
            Some(values) if operand.ty.elements() != Some(values.len()) => {
                Err(format!("{name} is {} of {} values", operand.ty, values.len()))
            }
            Some(values) => Ok(Some(values.iter().map(|&v| i64::from(v)).collect())),
            None => Err(format!("{name} is no constant of int32")),
        }
    }

    fn needed_ints(&self, name: &str) -> Inferred<Vec<i64>> {
        self.ints(name)?.ok_or_else(|| format!("{name} is missing"))
    }

    fn int(&self, name: &str, default: i64) -> Inferred<i64> {
        match self.ints(name)?.as_deref() {
            None => Ok(default),
            Some([value]) => Ok(*value),
            Some(_) => Err(format!("{name} is no single number")),
        }
    }

    fn bools(&self, name: &str, n: usize) -> Inferred<Vec<bool>> {
        let Some(operand) = self.optional(name)? else { return Ok(vec![false; n]) };
        match operand.value.and_then(Value::as_bools) {
            Some(values) if values.len() == n => Ok(values.to_vec()),
            Some(values) => Err(format!("{name} has {} values, not {n}", values.len())),
            None => Err(format!("{name} is no constant of bool")),
        }
    }

    fn flag(&self, name: &str, default: bool) -> Inferred<bool> {
        match self.optional(name)? {
            None => Ok(default),
            Some(_) => Ok(self.bools(name, 1)?[0]),
        }
    }

    fn text(&self, name: &str) -> Inferred<Option<&'a str>> {
        let Some(operand) = self.optional(name)? else { return Ok(None) };
        let text = operand.value.and_then(Value::as_str);
        text.map(Some).ok_or_else(|| format!("{name} is no constant text"))
    }

    fn dtype(&self, name: &str, default: Option<DataType>) -> Inferred<DataType> {
        match (self.text(name)?, default) {
            (Some(text), _) => {
                DataType::from_name(text).ok_or_else(|| format!("{name} {text:?} is no type"))
            }
            (None, Some(default)) => Ok(default),
            (None, None) => Err(format!("{name} is missing")),
        }
    }

    /// A dimension of `rank`, counted from the end if negative.
    fn axis(&self, name: &str, default: Option<i64>, rank: usize) -> Inferred<usize> {
        let axis = match (self.ints(name)?.as_deref(), default) {
            (Some([axis]), _) => *axis,
            (None, Some(default)) => default,
            _ => return Err(format!("{name} is no single number")),
        };
        shapes::axis(axis, rank)
    }

    /// Dimensions of `rank`, in order; none if the parameter is left out.
    fn axes(&self, name: &str, rank: usize) -> Inferred<Option<Vec<usize>>> {
        let Some(axes) = self.ints(name)? else { return Ok(None) };
        let axes: Inferred<Vec<usize>> = axes.iter().map(|&a| shapes::axis(a, rank)).collect();
        let mut axes = axes?;
        axes.sort_unstable();
        match axes.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err(format!("{name} has a dimension twice")),
            false => Ok(Some(axes)),
        }
    }
}

//! Operations on single elements, with shapes stretched to each other where there are two.

use super::call::{Call, Outcome};
use super::tensor::{Element, Tensor, buffer, each_row, half, strides};
use crate::mil::DataType;

/// One operand to one result.
pub(super) fn unary(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let shape = x.shape().to_vec();
    if call.kind == "logical_not" {
        let values = bool::unwrap(x).ok_or("x has no truth values")?;
        return Ok(Tensor::bools(&shape, values.iter().map(|v| !v).collect()));
    }
    if x.as_ints().is_some() {
        let f: fn(i32) -> i32 = match call.kind {
            "abs" => i32::wrapping_abs,
            "relu" => |v| v.max(0),
            kind => return Err(format!("{kind} of integers")),
        };
        let values = i32::unwrap(x).expect("they are integers");
        return Ok(Tensor::ints(&shape, values.iter().map(|&v| f(v)).collect()));
    }
    let mut values = x.into_floats().ok_or("x has no numbers")?;
    if call.rounds_steps && in_halves(call, &mut values)? {
        return Ok(Tensor::floats(&shape, values));
    }
    let mut map = |f: &dyn Fn(f32) -> f32| values.iter_mut().for_each(|v| *v = f(*v));
    match call.kind {
        "exp" => map(&f32::exp),
        "sqrt" => map(&f32::sqrt),
        "rsqrt" => {
            let epsilon = call.number("epsilon", 1e-12)?;
            map(&|v| 1.0 / (v + epsilon).sqrt());
        }
        "sigmoid" => map(&|v| 1.0 / (1.0 + (-v).exp())),
        "silu" => map(&|v| v / (1.0 + (-v).exp())),
        "tanh" => map(&f32::tanh),
        "softsign" => map(&|v| v / (1.0 + v.abs())),
        "relu" => map(&|v| v.max(0.0)),
        "abs" => map(&f32::abs),
        "cos" => map(&f32::cos),
        "sin" => map(&f32::sin),
        "erf" => map(&|v| erf(f64::from(v)) as f32),
        "gelu" => match call.text("mode").unwrap_or("EXACT") {
            "EXACT" => map(&|v| {
                let v = f64::from(v);
                (0.5 * v * (1.0 + erf(v / std::f64::consts::SQRT_2))) as f32
            }),
            "TANH_APPROXIMATION" => map(&|v| {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
                0.5 * v * (1.0 + inner.tanh())
            }),
            "SIGMOID_APPROXIMATION" => map(&|v| v / (1.0 + (-1.702 * v).exp())),
            mode => return Err(format!("mode {mode:?} is not known")),
        },
        "clip" => {
            let (low, high) = (call.number("alpha", 0.0)?, call.number("beta", 0.0)?);
            // Not `clamp`, which panics where the bounds are in the wrong order.
            map(&|v| v.max(low).min(high));
        }
        "leaky_relu" => {
            let slope = call.number("alpha", 0.01)?;
            map(&|v| if v < 0.0 { slope * v } else { v });
        }
        kind => return Err(format!("{kind} is not known")),
    }
    Ok(Tensor::floats(&shape, values))
}

/// The operations that round on the way to their result, if they are to: whether this is one of them.
fn in_halves(call: &Call<'_>, values: &mut [f32]) -> Outcome<bool> {
    let mut map = |f: &dyn Fn(f32) -> f32| values.iter_mut().for_each(|v| *v = f(*v));
    match (call.kind, call.text("mode")) {
        ("rsqrt", _) => {
            let epsilon = half(call.number("epsilon", 1e-12)?);
            map(&|v| 1.0 / half(half(v + epsilon).sqrt()));
        }
        ("sigmoid", _) => map(&|v| 1.0 / half(1.0 + half((-v).exp()))),
        ("softsign", _) => map(&|v| v / half(1.0 + v.abs())),
        ("gelu", None | Some("EXACT")) => map(&|v| {
            let share = 1.0 + erf(f64::from(v) / std::f64::consts::SQRT_2);
            half(0.5 * v) * half(share as f32)
        }),
        ("gelu", Some("TANH_APPROXIMATION")) => map(&|v| {
            let cube = half(v.powi(3));
            let inner = half(v + half(half(0.044715) * cube));
            half(0.5 * v) * (1.0 + ((2.0 / std::f32::consts::PI).sqrt() * inner).tanh())
        }),
        ("gelu", Some("SIGMOID_APPROXIMATION")) => {
            map(&|v| v * half(1.0 / half(1.0 + half((-half(half(1.702) * v)).exp()))));
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The error function, from the series of the incomplete gamma function below 2.5 and its continued
/// fraction above (DLMF 8.11.4 and 8.9.2). Good to about 1e-15.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let square = a * a;
    let value = if a < 2.5 {
        let (mut term, mut sum) = (a, a);
        for n in 1..80 {
            term *= square / (f64::from(n) + 0.5);
            sum += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-square).exp() * sum
    } else {
        let mut fraction = 0.0;
        for n in (1..60).rev() {
            fraction = f64::from(n) / 2.0 / (a + fraction);
        }
        1.0 - (-square).exp() / std::f64::consts::PI.sqrt() / (a + fraction)
    };
    if x.is_nan() { x } else { value.copysign(x) }
}

/// Two operands of one type to a result of that type, or to truth values.
pub(super) fn binary(call: &mut Call<'_>) -> Outcome<Tensor> {
    let (x, y) = (call.take("x")?, call.tensor("y")?);
    let kind = call.kind;
    let shape = call.ty().shape.clone();
    if x.as_floats().is_some() {
        let compare: Option<fn(f32, f32) -> bool> = match kind {
            "greater" => Some(|a, b| a > b),
            "greater_equal" => Some(|a, b| a >= b),
            "less" => Some(|a, b| a < b),
            "less_equal" => Some(|a, b| a <= b),
            "equal" => Some(|a, b| a == b),
            "not_equal" => Some(|a, b| a != b),
            _ => None,
        };
        return match (compare, kind) {
            (Some(f), _) => zip::<f32, bool>(&shape, x, y, f),
            (_, "add") => floats(&shape, x, y, |a, b| a + b),
            (_, "sub") => floats(&shape, x, y, |a, b| a - b),
            (_, "mul") => floats(&shape, x, y, |a, b| a * b),
            (_, "real_div") => floats(&shape, x, y, |a, b| a / b),
            (_, "maximum") => floats(&shape, x, y, f32::max),
            (_, "minimum") => floats(&shape, x, y, f32::min),
            (_, "pow") => floats(&shape, x, y, f32::powf),
            _ => Err(format!("{kind} of floating-point numbers")),
        };
    }
    if x.as_ints().is_some() {
        let compare: Option<fn(i32, i32) -> bool> = match kind {
            "greater" => Some(|a, b| a > b),
            "greater_equal" => Some(|a, b| a >= b),
            "less" => Some(|a, b| a < b),
            "less_equal" => Some(|a, b| a <= b),
            "equal" => Some(|a, b| a == b),
            "not_equal" => Some(|a, b| a != b),
            _ => None,
        };
        return match (compare, kind) {
            (Some(f), _) => zip::<i32, bool>(&shape, x, y, f),
            (_, "add") => zip(&shape, x, y, i32::wrapping_add),
            (_, "sub") => zip(&shape, x, y, i32::wrapping_sub),
            (_, "mul") => zip(&shape, x, y, i32::wrapping_mul),
            (_, "maximum") => zip(&shape, x, y, i32::max),
            (_, "minimum") => zip(&shape, x, y, i32::min),
            _ => Err(format!("{kind} of integers")),
        };
    }
    match kind {
        "logical_and" => zip(&shape, x, y, |a: bool, b| a && b),
        "logical_or" => zip(&shape, x, y, |a: bool, b| a || b),
        "equal" => zip(&shape, x, y, |a: bool, b| a == b),
        "not_equal" => zip(&shape, x, y, |a: bool, b| a != b),
        _ => Err(format!("{kind} of truth values")),
    }
}

/// The sum of two tensors of floating-point numbers, of which the first has the shape of the result.
pub(super) fn add(shape: &[usize], x: Tensor, y: Tensor) -> Outcome<Tensor> {
    floats(shape, x, y, |a, b| a + b)
}

/// As [`zip`], in place where the left operand has the result's shape.
fn floats(shape: &[usize], x: Tensor, y: Tensor, f: impl Fn(f32, f32) -> f32) -> Outcome<Tensor> {
    if x.shape() != shape {
        return zip(shape, x, y, f);
    }
    let y_steps = steps_of(y.shape(), shape);
    let mut values = x.into_floats().ok_or("x has no numbers")?;
    let other = f32::unwrap(y).ok_or("x and y differ in type")?;
    let len = shape.last().copied().unwrap_or(1);
    let mut at = 0;
    let last = y_steps.last().copied().unwrap_or(0);
    each_row(shape, std::slice::from_ref(&y_steps), |places| {
        let row = &mut values[at..at + len];
        at += len;
        let first = places[0] as usize;
        match last {
            0 => row.iter_mut().for_each(|v| *v = f(*v, other[first])),
            _ => row.iter_mut().zip(&other[first..first + len]).for_each(|(v, &o)| *v = f(*v, o)),
        }
    });
    Ok(Tensor::floats(shape, values))
}

/// Applies `f` to every pair of elements of two tensors that are stretched to `shape`.
fn zip<T: Element, U: Element>(
    shape: &[usize],
    x: Tensor,
    y: Tensor,
    f: impl Fn(T, T) -> U,
) -> Outcome<Tensor> {
    let steps = [steps_of(x.shape(), shape), steps_of(y.shape(), shape)];
    let (Some(x), Some(y)) = (T::unwrap(x), T::unwrap(y)) else {
        return Err("x and y differ in type".into());
    };
    let len = shape.last().copied().unwrap_or(1);
    let last = [0, 1].map(|i: usize| steps[i].last().copied().unwrap_or(0));
    let mut out = buffer(shape.iter().product())?;
    each_row(shape, &steps, |at| {
        let pair = |i: usize| {
            let i = i as isize;
            f(x[(at[0] + i * last[0]) as usize], y[(at[1] + i * last[1]) as usize])
        };
        out.extend((0..len).map(pair));
    });
    Ok(Tensor::moved(shape, out))
}

/// Distances between neighbours of a tensor that is stretched to `shape`: 0 where it repeats.
fn steps_of(own: &[usize], shape: &[usize]) -> Vec<isize> {
    let missing = shape.len() - own.len();
    let strides = strides(own);
    (0..shape.len())
        .map(|i| match i.checked_sub(missing) {
            Some(at) if own[at] != 1 => strides[at] as isize,
            _ => 0,
        })
        .collect()
}

/// `a` where `cond` holds, else `b`.
pub(super) fn select(call: &Call<'_>) -> Outcome<Tensor> {
    let [cond, a, b] = [call.tensor("cond")?, call.tensor("a")?, call.tensor("b")?];
    let shape = &call.ty().shape;
    let (floats, ints) = (a.as_floats().is_some(), a.as_ints().is_some());
    if floats {
        choose::<f32>(shape, cond, a, b)
    } else if ints {
        choose::<i32>(shape, cond, a, b)
    } else {
        choose::<bool>(shape, cond, a, b)
    }
}

fn choose<T: Element>(shape: &[usize], cond: Tensor, a: Tensor, b: Tensor) -> Outcome<Tensor> {
    let steps = [&cond, &a, &b].map(|t| steps_of(t.shape(), shape));
    let (Some(cond), Some(a), Some(b)) = (bool::unwrap(cond), T::unwrap(a), T::unwrap(b)) else {
        return Err("a and b differ in type".into());
    };
    let len = shape.last().copied().unwrap_or(1);
    let mut out = buffer(shape.iter().product())?;
    each_row(shape, &steps, |at| {
        let place = |t: usize, i: usize| {
            (at[t] + i as isize * steps[t].last().copied().unwrap_or(0)) as usize
        };
        let one = |i| if cond[place(0, i)] { a[place(1, i)] } else { b[place(2, i)] };
        out.extend((0..len).map(one));
    });
    Ok(Tensor::moved(shape, out))
}

/// The same numbers in another type. Floating-point numbers are cut to integers.
pub(super) fn cast(call: &mut Call<'_>) -> Outcome<Tensor> {
    let x = call.take("x")?;
    let shape = x.shape().to_vec();
    let floats: Vec<f32> = if let Some(values) = x.as_floats() {
        if call.ty().dtype.is_float() {
            return Ok(x);
        }
        values.to_vec()
    } else if let Some(values) = x.as_ints() {
        if call.ty().dtype == DataType::Int32 {
            return Ok(x);
        }
        values.iter().map(|&v| v as f32).collect()
    } else {
        let values = bool::unwrap(x).expect("the last of three kinds");
        values.iter().map(|&v| f32::from(u8::from(v))).collect()
    };
    Ok(match call.ty().dtype {
        DataType::Bool => Tensor::bools(&shape, floats.iter().map(|&v| v != 0.0).collect()),
        DataType::Int32 => Tensor::ints(&shape, floats.iter().map(|&v| v as i32).collect()),
        DataType::Int16 => {
            Tensor::ints(&shape, floats.iter().map(|&v| i32::from(v as i16)).collect())
        }
        DataType::UInt16 => {
            Tensor::ints(&shape, floats.iter().map(|&v| i32::from(v as u16)).collect())
        }
        DataType::Float16 | DataType::Float32 => Tensor::floats(&shape, floats),
        other => return Err(format!("a cast to {other}")),
    })
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn the_error_function_has_its_known_values() {
        // Abramowitz and Stegun, table 7.1.
        for (x, value) in [(0.5, 0.5204998778), (1.0, 0.8427007929), (2.4, 0.9993114861)] {
            assert!((erf(x) - value).abs() < 1e-10 && (erf(-x) + value).abs() < 1e-10, "{x}");
        }
        assert!((erf(2.499999) - erf(2.500001)).abs() < 1e-7);
        assert_eq!((erf(0.0), erf(30.0), erf(f64::INFINITY)), (0.0, 1.0, 1.0));
        assert!(erf(f64::NAN).is_nan());
    }
}

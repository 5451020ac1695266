//! `fuse_rmsnorm_epsilon`: what a norm adds before its reciprocal root goes into that operation.
//!
//! Found are `rsqrt(x + e)`, `(x + e) ^ -0.5`, `1 / sqrt(x + e)` and `y / sqrt(x + e)`, for a constant
//! number `e` that is not negative.

use super::rewrite::Rewrite;
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::view::{View, number, scalar};
use crate::mil::{Arg, Op};

/// What `rsqrt` adds if it is not told.
const DEFAULT: f32 = 1e-12;
/// How far off what is added may be, in parts of it.
const NEAR: f32 = 1e-5;

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, _| {
        let view = View::new(function);
        let (mut rewrite, mut changes) = (Rewrite::new(function), Vec::new());
        for op in &function.body.ops {
            let Some(norm) = Norm::of(op, &view) else {
                rewrite.keep(op)?;
                continue;
            };
            let result = &op.outputs[0].name;
            let x = rewrite.now(norm.x);
            let epsilon = scalar(x.ty().dtype, norm.epsilon).expect("its number was read");
            let args = [("x", Arg::from(&x)), ("epsilon", epsilon.into())];
            let root = rewrite.op("rsqrt", result, &args)?;
            let made = match norm.divided {
                None => root,
                Some(y) => {
                    let y = rewrite.now(y);
                    rewrite.op("mul", result, &[("x", (&y).into()), ("y", (&root).into())])?
                }
            };
            rewrite.becomes(result, &made)?;
            let text = format!("rsqrt adds {:e}", norm.epsilon);
            changes.push(Change::done(name, op.name(), text));
        }
        Ok((Some(rewrite.finish()?).filter(|_| !changes.is_empty()), changes))
    })
}

/// A reciprocal root of a sum.
struct Norm<'a> {
    x: &'a str,
    epsilon: f32,
    /// What is divided by the root, if that is not 1.
    divided: Option<&'a str>,
}

impl<'a> Norm<'a> {
    fn of(op: &'a Op, view: &View<'a>) -> Option<Norm<'a>> {
        let (sum, more, divided) = match op.kind.as_str() {
            "rsqrt" => {
                let more = op.input("epsilon").map_or(Some(DEFAULT), |e| view.number(Some(e)))?;
                (op.input("x"), more, None)
            }
            "pow" if view.number(op.input("y")) == Some(-0.5) => (op.input("x"), 0.0, None),
            "real_div" => {
                let root = view.made_by(op.input("y")).filter(|root| root.kind == "sqrt")?;
                // Only if the root is then of no more use.
                view.only_user(&root.outputs[0].name)?;
                let divided = match view.number(op.input("x")) {
                    Some(1.0) => None,
                    _ => Some(op.input("x")?.name()?),
                };
                (root.input("x"), 0.0, divided)
            }
            _ => return None,
        };
        let sum = view.made_by(sum).filter(|sum| sum.kind == "add")?;
        let (x, y) = (sum.input("x")?, sum.input("y")?);
        let (x, epsilon) = match (view.number(Some(x)), view.number(Some(y))) {
            (None, Some(epsilon)) => (x, epsilon),
            (Some(epsilon), None) => (y, epsilon),
            _ => return None,
        };
        let x = x.name()?;
        // A number of higher rank would give the sum its own.
        let same = view.ty(x)? == view.result_type(sum)?
            && (divided.is_some() || view.ty(x)? == view.result_type(op)?);
        let epsilon = Some(epsilon).filter(|epsilon| *epsilon >= 0.0)? + more;
        // The sum of two numbers may be none in half precision.
        let kept = number(&scalar(view.ty(x)?.dtype, epsilon)?)?;
        let sound = kept.is_finite() && (kept - epsilon).abs() <= NEAR * epsilon && same;
        sound.then_some(Norm { x, epsilon: kept, divided })
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, kinds};
    use crate::mil::{Arg, DataType, FunctionBuilder, TensorType, Value, Var};

    /// A function of reciprocal roots of `x * x + e` in four forms.
    fn norms(epsilon: f32) -> crate::mil::Function {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float32, &[2, 4]));
        let square = b.op("mul", "square", &[("x", (&x).into()), ("y", (&x).into())]).unwrap();
        let number = |n| Arg::from(Value::f32(n));
        let sum = b.op("add", "sum", &[("x", number(epsilon)), ("y", (&square).into())]).unwrap();
        let root =
            |b: &mut FunctionBuilder, x: &Var| b.op("sqrt", "root", &[("x", x.into())]).unwrap();
        let roots = [root(&mut b, &sum), root(&mut b, &sum)];
        let outputs = [
            b.op("rsqrt", "a", &[("x", (&sum).into()), ("epsilon", number(0.25))]),
            b.op("pow", "b", &[("x", (&sum).into()), ("y", number(-0.5))]),
            b.op("real_div", "c", &[("x", number(1.0)), ("y", (&roots[0]).into())]),
            b.op("real_div", "d", &[("x", (&x).into()), ("y", (&roots[1]).into())]),
        ];
        b.finish(&outputs.map(Result::unwrap))
    }

    #[test]
    fn every_form_of_a_norm_becomes_one_operation() {
        let (function, changes) = check("fuse_rmsnorm_epsilon", norms(0.5));
        assert_eq!(changes, 4);
        assert_eq!(kinds(&function, "rsqrt"), 4);
        assert_eq!(kinds(&function, "pow") + kinds(&function, "real_div"), 0);
    }

    #[test]
    fn a_sum_that_half_precision_would_round_is_left() {
        let norm = |epsilon: f32| {
            let mut b = FunctionBuilder::new();
            let x = b.input("x", TensorType::new(DataType::Float16, &[4]));
            let square = b.op("mul", "s", &[("x", (&x).into()), ("y", (&x).into())]).unwrap();
            let number = |n| Arg::from(Value::f16(n));
            let sum = b.op("add", "a", &[("x", (&square).into()), ("y", number(epsilon))]).unwrap();
            // As coremltools has it: in single precision.
            let args = [("x", (&sum).into()), ("epsilon", Value::f32(1e-12).into())];
            let y = b.op("rsqrt", "y", &args).unwrap();
            let args = [("x", (&sum).into()), ("epsilon", number(1e-3))];
            let z = b.op("rsqrt", "z", &args).unwrap();
            check("fuse_rmsnorm_epsilon", b.finish(&[y, z])).1
        };
        assert_eq!((norm(1e-5), norm(0.5)), (1, 1));
        assert_eq!(norm(1e-3), 2);
    }

    #[test]
    fn what_may_be_negative_is_left() {
        assert_eq!(check("fuse_rmsnorm_epsilon", norms(-0.5)).1, 0);
    }
}

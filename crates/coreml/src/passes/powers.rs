//! `pow_to_mul`: powers with small whole exponents become products.

use super::rewrite::Rewrite;
use super::{Change, Draft, Options};
use crate::Result;
use crate::mil::view::View;

pub(super) fn run(draft: &mut Draft, _: &Options) -> Result<Vec<Change>> {
    draft.each(|name, function, _| {
        let view = View::new(function);
        let (mut rewrite, mut changes) = (Rewrite::new(function), Vec::new());
        for op in &function.body.ops {
            let rank = |parameter| view.operand_type(op, parameter).map_or(0, |ty| ty.shape.len());
            let exponent = view.number(op.input("y"));
            // Of a higher rank, the exponent would give the result its own.
            let (Some(exponent @ (2.0 | 3.0 | 4.0)), "pow", true) =
                (exponent, op.kind.as_str(), rank("y") <= rank("x"))
            else {
                rewrite.keep(op)?;
                continue;
            };
            let x = rewrite.operand(op, "x");
            let result = &op.outputs[0].name;
            let square = rewrite.op("mul", result, &[("x", (&x).into()), ("y", (&x).into())])?;
            let power = match exponent {
                2.0 => square,
                other => {
                    let y = if other == 3.0 { &x } else { &square };
                    rewrite.op("mul", result, &[("x", (&square).into()), ("y", y.into())])?
                }
            };
            rewrite.becomes(result, &power)?;
            changes.push(Change::done(
                name,
                op.name(),
                format!("the power {exponent} is products"),
            ));
        }
        Ok((Some(rewrite.finish()?).filter(|_| !changes.is_empty()), changes))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{check, kinds};
    use crate::mil::{DataType, FunctionBuilder, TensorType, Value};

    #[test]
    fn small_whole_powers_become_products_and_others_stay() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float32, &[2, 3]));
        let powers: Vec<_> = [2.0, 3.0, 4.0, 2.5]
            .map(|n| b.op("pow", "p", &[("x", (&x).into()), ("y", Value::f32(n).into())]).unwrap())
            .into();
        let sum = b.op("add", "sum", &[("x", (&powers[0]).into()), ("y", (&powers[1]).into())]);
        let outputs = [&powers[2..], &[sum.unwrap()]].concat();
        let (function, changes) = check("pow_to_mul", b.finish(&outputs));
        assert_eq!(changes, 3);
        assert_eq!(kinds(&function, "pow"), 1);
        assert_eq!(kinds(&function, "mul"), 1 + 2 + 2);
    }

    #[test]
    fn an_exponent_of_higher_rank_is_left() {
        let mut b = FunctionBuilder::new();
        let x = b.input("x", TensorType::new(DataType::Float16, &[3]));
        let y = Value::f16s(&[1, 1], &[2.0]);
        let y = b.op("pow", "y", &[("x", (&x).into()), ("y", y.into())]).unwrap();
        assert_eq!(check("pow_to_mul", b.finish(&[y])).1, 0);
    }
}

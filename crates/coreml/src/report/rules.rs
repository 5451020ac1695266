//! What is known of the Neural Engine, as rules: each with what it applies to, what follows, and who found it.

mod facts;

use std::collections::HashSet;
use std::fmt;

use self::facts::{depth, heavy, is_state, scaled, states, tensors, update_rows, weights};
use crate::Package;
use crate::mil::view::View;
use crate::mil::{Binding, DataType, Op, TensorType};
use crate::package::LARGEST;

/// What follows from a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation is done elsewhere.
    Cpu,
    /// Loading or running on the Neural Engine fails.
    Fails,
    /// It is worth knowing.
    Warns,
}

impl Verdict {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Cpu => "cpu",
            Verdict::Fails => "fails",
            Verdict::Warns => "warning",
        }
    }
}

/// One rule. Exactly one of `op`, `function` and `package` is there.
pub struct Rule {
    /// Its name.
    pub name: &'static str,
    /// What follows.
    pub verdict: Verdict,
    /// Why, as it stands in tables.
    pub reason: &'static str,
    /// What to do about it.
    pub instead: &'static str,
    /// Who reported it.
    pub source: &'static str,
    pub(super) op: Option<fn(&View<'_>, &Op) -> bool>,
    pub(super) function: Option<fn(&View<'_>) -> Vec<String>>,
    pub(super) package: Option<fn(&Package) -> Option<String>>,
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({})", self.name)
    }
}

impl PartialEq for Rule {
    fn eq(&self, other: &Rule) -> bool {
        self.name == other.name
    }
}

/// The longest dimension that all chips take.
const LONGEST: usize = 16384;
/// Rows of a state that are safely updated at once.
const ROWS: usize = 32;
/// Weights of a function, each counted as in half precision, from which on it does not load; from
/// [`LARGEST`] on it may not be placed.
const TOO_HEAVY: u64 = 2_000_000_000;
/// Functions from which on a package is worth a warning.
const FUNCTIONS: usize = 4;
/// Products of two layers: seven with weights and two of attention each.
const SMALL: usize = 18;

const RULE: Rule = Rule {
    name: "",
    verdict: Verdict::Cpu,
    reason: "",
    instead: "",
    source: "",
    op: None,
    function: None,
    package: None,
};

/// All rules, those of operations first.
pub const RULES: &[Rule] = &[
    Rule {
        name: "single-precision",
        reason: "it computes in single precision, the Neural Engine in half",
        instead: "convert with half precision (compute_precision FLOAT16)",
        source: "hollance/neural-engine, docs/16-bit.md",
        op: Some(|view, op| tensors(view, op).any(|ty| ty.dtype == DataType::Float32)),
        ..RULE
    },
    Rule {
        name: "integers",
        reason: "it computes with integers or truth values",
        instead: "compute it outside of the package, and make it an input",
        source: "john-rocky/CoreML-LLM, docs; hollance/neural-engine, docs/unsupported-layers.md",
        op: Some(|view, op| {
            let whole = |ty: &TensorType| !ty.dtype.is_float();
            let result = view.result_type(op).is_some_and(whole);
            let made_of = matches!(op.kind.as_str(), "cast" | "select")
                && ["x", "cond"].iter().any(|p| view.operand_type(op, p).is_some_and(whole));
            result || made_of || matches!(op.kind.as_str(), "reduce_argmax" | "topk")
        }),
        ..RULE
    },
    Rule {
        name: "power",
        reason: "powers are not done there",
        instead: "multiply (pass pow_to_mul)",
        source: "SqueezeBits, Disaggregated Inference on Apple Silicon (2025)",
        op: Some(|_, op| op.kind == "pow"),
        ..RULE
    },
    Rule {
        name: "gather",
        reason: "rows are not looked up there, and indices beyond 65535 are cut off",
        instead: "look embeddings up outside of the package",
        source: "hollance/neural-engine, docs/unsupported-layers.md; pytorch/executorch #7616",
        op: Some(|_, op| op.kind == "gather"),
        ..RULE
    },
    Rule {
        name: "attention-operation",
        reason: "attention in one operation runs there for few shapes only, and wrongly on some systems",
        instead: "take it apart (pass slice_attention_queries)",
        source: "pytorch/executorch PR 16057 and 16144; apple/coremltools #2650",
        op: Some(|_, op| op.kind == "scaled_dot_product_attention"),
        ..RULE
    },
    Rule {
        name: "long-dimension",
        reason: "a dimension exceeds 16384, which A13 to A15, M1 and M2 do not take",
        instead: "split it (pass split_head)",
        source: "FluidInference/mobius #61; microsoft/onnxruntime #19543; ANEForge #57 and #240",
        op: Some(|view, op| {
            !is_state(op) && tensors(view, op).any(|ty| ty.shape.iter().any(|&dim| dim > LONGEST))
        }),
        ..RULE
    },
    Rule {
        name: "deep-product",
        reason: "it sums more than 16384 products",
        instead: "split the sum into several products",
        source: "larql #312",
        op: Some(|view, op| depth(view, op).is_some_and(|depth| depth > LONGEST)),
        ..RULE
    },
    Rule {
        name: "block-scales",
        reason: "its weight has scales for blocks of its columns, which only CPU and GPU unpack",
        instead: "use tables of values (baton compile --bits), or one scale for each row",
        source: "apple/coremltools #2510; apple/coreai-models #279",
        op: Some(|view, op| scaled(view, op).any(|(_, blocks)| blocks > 1)),
        ..RULE
    },
    Rule {
        name: "int4-scales",
        reason: "its weight is integers of 4 bits, which nobody has reported there",
        instead: "use tables of 16 values (baton compile --bits 4)",
        source: "stablehlo-coreml PR 110",
        op: Some(|view, op| {
            let four = |ty: &TensorType| matches!(ty.dtype, DataType::Int4 | DataType::UInt4);
            scaled(view, op).any(|(ty, blocks)| blocks == 1 && four(ty))
        }),
        ..RULE
    },
    Rule {
        name: "int8-scales",
        verdict: Verdict::Warns,
        reason: "reports differ on whether weights of 8-bit integers run there",
        instead: "use tables of 256 values (baton compile --bits 8) if it is not placed",
        source: "stablehlo-coreml PR 110; larql #312",
        op: Some(|view, op| {
            let eight = |ty: &TensorType| matches!(ty.dtype, DataType::Int8 | DataType::UInt8);
            scaled(view, op).any(|(ty, blocks)| blocks == 1 && eight(ty))
        }),
        ..RULE
    },
    Rule {
        name: "column-tables",
        verdict: Verdict::Fails,
        reason: "its weight has tables for groups of its columns, which the compiler refuses",
        instead: "use tables for groups of rows (baton compile --group)",
        source: "john-rocky/CoreML-LLM, docs",
        op: Some(|view, op| {
            weights(view, op).any(|weight| {
                let shape = view.operand_type(weight, "lut").map_or(&[][..], |ty| &ty.shape);
                shape.len() > 3 && shape[1..shape.len() - 2].iter().any(|&groups| groups > 1)
            })
        }),
        ..RULE
    },
    Rule {
        name: "scaled-table",
        verdict: Verdict::Fails,
        reason: "its weight has scales beside a table, which macOS 26 does not load",
        instead: "multiply the scales into tables of their own",
        source: "apple/coremltools PR 2688",
        op: Some(|view, op| {
            weights(view, op).any(|weight| matches!(weight.input("lut"), Some(Binding::Name(_))))
        }),
        ..RULE
    },
    Rule {
        name: "many-rows-into-state",
        verdict: Verdict::Warns,
        reason: "it updates more than 32 rows of a state at once, which was reported to go wrong",
        instead: "make keys and values results, and keep them outside",
        source: "Anemll #27",
        op: Some(|view, op| update_rows(view, op).is_some_and(|rows| rows > ROWS)),
        ..RULE
    },
    Rule {
        name: "three-states",
        verdict: Verdict::Fails,
        reason: "functions with three states fail when they run",
        instead: "merge them (pass merge_kv_states)",
        source: "john-rocky/CoreML-LLM, MLSTATE_PATTERN; SqueezeBits (2025)",
        function: Some(|view| match view.function.states().count() {
            n @ 3.. => vec![format!("{n} states")],
            _ => Vec::new(),
        }),
        ..RULE
    },
    Rule {
        name: "state-dimensions",
        verdict: Verdict::Fails,
        reason: "a state has a dimension behind the first that is no power of two",
        instead: "pad it (pass pad_state_dims_to_power_of_two)",
        source: "SqueezeBits (2025)",
        function: Some(|view| {
            let odd = |shape: &[usize]| shape.iter().skip(1).any(|dim| !dim.is_power_of_two());
            states(view, |shape| odd(shape))
        }),
        ..RULE
    },
    Rule {
        name: "state-width",
        verdict: Verdict::Fails,
        reason: "the last dimension of a state is no multiple of 32",
        instead: "pad it (pass pad_state_dims_to_power_of_two)",
        source: "apple/coremltools #2631",
        function: Some(|view| {
            states(view, |shape| shape.last().is_none_or(|last| !last.is_multiple_of(32)))
        }),
        ..RULE
    },
    Rule {
        name: "states-differ",
        verdict: Verdict::Warns,
        reason: "states of different shapes fail on M1 and A14",
        instead: "give all states of a function one shape",
        source: "Anemll 0.3.5",
        function: Some(|view| {
            let shapes: HashSet<_> = view.function.states().map(|(_, ty)| &ty.shape).collect();
            Vec::from_iter((shapes.len() > 1).then(|| format!("{} shapes", shapes.len())))
        }),
        ..RULE
    },
    Rule {
        name: "state-unused",
        verdict: Verdict::Warns,
        reason: "a state that is not both read and written loses its place",
        instead: "leave it out, or make it an input",
        source: "apple/coremltools #2275 and #2278",
        function: Some(|view| {
            let used = |state: &str, kind: &str| {
                view.users(state).iter().any(|&user| view.op(user).kind == kind)
            };
            let unused = view
                .function
                .states()
                .map(|(state, _)| state)
                .filter(|state| !(used(state, "read_state") && used(state, "write_state")));
            unused.map(str::to_owned).collect()
        }),
        ..RULE
    },
    Rule {
        name: "tables-and-states",
        verdict: Verdict::Warns,
        reason: "functions with tables and states were reported to crash after some hundred calls",
        instead: "keep the cache outside of the package if that happens",
        source: "apple/coremltools #2716",
        function: Some(|view| {
            let mut ops = view.function.body.ops.iter();
            let both = view.function.states().next().is_some()
                && ops.any(|op| op.kind == "constexpr_lut_to_dense");
            Vec::from_iter(both.then(|| "tables and states".to_owned()))
        }),
        ..RULE
    },
    Rule {
        name: "small-function",
        verdict: Verdict::Warns,
        reason: "functions of one or two layers are run on the CPU, whatever is in them",
        instead: "put more layers into it",
        source: "john-rocky/CoreML-LLM, docs",
        function: Some(|view| {
            let ops = view.function.body.ops.iter();
            let products = ops.filter(|op| depth(view, op).is_some()).count();
            Vec::from_iter((products <= SMALL).then(|| format!("{products} products")))
        }),
        ..RULE
    },
    Rule {
        name: "heavy-function",
        verdict: Verdict::Warns,
        reason: "with about 1 GB of weights or more, counted as in half precision, it may not be placed",
        instead: "cut it (pass split_chunks)",
        source: "john-rocky/CoreML-LLM, docs; ANEForge #45; Anemll, --max-chunk-mb",
        function: Some(|view| heavy(view, LARGEST..TOO_HEAVY)),
        ..RULE
    },
    Rule {
        name: "too-heavy-function",
        verdict: Verdict::Fails,
        reason: "with more than 2 GB of weights, counted as in half precision, it does not load",
        instead: "cut it (pass split_chunks)",
        source: "john-rocky/CoreML-LLM, docs; ANEForge #45",
        function: Some(|view| heavy(view, TOO_HEAVY..u64::MAX)),
        ..RULE
    },
    Rule {
        name: "stateful-chunk",
        verdict: Verdict::Warns,
        reason: "iPhones refuse packages of several functions, one of which writes many tokens to a state",
        instead: "put that function into a package of its own",
        source: "john-rocky/CoreML-LLM, docs",
        package: Some(|package| {
            let functions = &package.model.program.functions;
            let writes_many = functions.iter().find(|(_, function)| {
                let view = View::new(function);
                let mut ops = function.body.ops.iter();
                ops.any(|op| update_rows(&view, op).is_some_and(|rows| rows > 1))
            });
            writes_many.filter(|_| functions.len() > 1).map(|(name, _)| name.clone())
        }),
        ..RULE
    },
    Rule {
        name: "many-functions",
        verdict: Verdict::Warns,
        reason: "memory grows with each function of a package that is loaded",
        instead: "leave functions out (baton compile --tokens)",
        source: "apple/coremltools #2351",
        package: Some(|package| {
            let n = package.model.program.functions.len();
            (n > FUNCTIONS).then(|| format!("{n} functions"))
        }),
        ..RULE
    },
];

//! MIL, the language of Core ML's ML Programs, as a library.
//!
//! ```text
//! types, value, program   what a program consists of
//! builder                 makes functions, inferring every type
//! print, parse            its text form, both ways
//! proto                   its form in files
//! signatures, infer       what each operation takes, and yields
//! varying                 functions whose inputs may have one of several shapes
//! verify                  whether a program keeps the rules
//! view                    what values are made of and used for
//! ```

mod builder;
mod infer;
mod parse;
mod print;
mod program;
pub(crate) mod proto;
mod signatures;
mod types;
mod value;
pub(crate) mod varying;
mod verify;
pub(crate) mod view;

pub use builder::{Arg, FunctionBuilder, Var};
pub(crate) use infer::shapes::axis;
pub(crate) use infer::slices::{Range as SliceRange, range as slice_range};
pub use infer::{Operand, infer};
pub use program::{Binding, Block, Function, Named, OPSET, Op, Program};
pub use signatures::{Kind, Parameter, Signature};
pub use types::{DataType, TensorType, Type};
pub use value::{BlobRef, Data, Elements, Value};
pub use verify::verify;

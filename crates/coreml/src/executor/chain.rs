//! Which arrays the functions of a model's chunks read and write when they are called one after the other.

use std::collections::BTreeMap;

use crate::lower::{HIDDEN_STATE, INCOMING, NEW, PAST};
use crate::mil::{Function, TensorType};
use crate::runtime::ArrayId;
use crate::{Error, Result};

/// What an array is for, with its type. What has the same place lies in the same array.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub purpose: String,
    pub ty: TensorType,
}

/// The arrays of one chunk's function, by the names of its inputs and outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bindings {
    pub inputs: Vec<(String, Slot)>,
    pub outputs: Vec<(String, Slot)>,
}

/// The arrays that were made.
#[derive(Debug, Default)]
pub(crate) struct Arrays {
    made: BTreeMap<Slot, ArrayId>,
}

impl Slot {
    pub fn new(purpose: impl Into<String>, ty: &TensorType) -> Slot {
        Slot { purpose: purpose.into(), ty: ty.clone() }
    }

    /// The earlier keys or values of a chunk.
    pub fn past(chunk: usize, name: &str, ty: &TensorType) -> Slot {
        Slot::new(format!("{name}/{chunk}"), ty)
    }

    /// An array of one of the calls of the head that are made at once.
    pub fn of_head(call: usize, name: &str, ty: &TensorType) -> Slot {
        Slot::new(Slot::head_call(call) + name, ty)
    }

    /// What the purposes of those arrays begin with.
    pub fn head_call(call: usize) -> String {
        format!("head/{call}/")
    }

    pub fn is_of_head(&self) -> bool {
        self.purpose.starts_with("head/")
    }

    pub fn is_past(&self) -> bool {
        PAST.iter().any(|name| self.purpose.strip_prefix(name).is_some_and(|s| s.starts_with('/')))
    }
}

/// The arrays of a function that all chunks have. `known` are the inputs that the caller computes, which
/// all chunks share.
///
/// The hidden state goes to and fro between two arrays, since no function writes what it reads. So do new
/// keys and values: those of a chunk are kept while the next one runs.
///
/// # Errors
/// If a chunk wants what nobody computes, another hidden state than the one before it makes, or what the caller
/// computes in another type than an earlier one.
pub(super) fn chain(chunks: &[&Function], known: &[String]) -> Result<Vec<Bindings>> {
    let apart = || Error::malformed("its chunks do not go together");
    let mut hidden: Option<Slot> = None;
    // It is computed once, for the first that wants it.
    let mut shared: BTreeMap<&str, &TensorType> = BTreeMap::new();
    let mut bindings = Vec::new();
    for (i, function) in chunks.iter().enumerate() {
        let mut chunk = Bindings::default();
        for (name, ty) in function.tensor_inputs() {
            let slot = match name {
                INCOMING => match &hidden {
                    Some(slot) if slot.ty == *ty => slot.clone(),
                    _ => return Err(apart()),
                },
                name if PAST.contains(&name) => Slot::past(i, name, ty),
                name if known.iter().any(|known| known == name) => {
                    if *shared.entry(name).or_insert(ty) != ty {
                        return Err(apart());
                    }
                    Slot::new(name, ty)
                }
                name => {
                    return Err(Error::malformed(format!("nobody computes its input {name:?}")));
                }
            };
            chunk.inputs.push((name.to_owned(), slot));
        }
        for (name, ty) in function.outputs() {
            if name == HIDDEN_STATE || NEW.contains(&name) {
                let slot = Slot::new(format!("{name}/{}", i % 2), ty);
                chunk.outputs.push((name.to_owned(), slot));
            }
        }
        hidden = chunk.output(HIDDEN_STATE).cloned();
        if hidden.is_none() {
            return Err(Error::malformed(format!("a function has no output {HIDDEN_STATE:?}")));
        }
        bindings.push(chunk);
    }
    Ok(bindings)
}

impl Bindings {
    pub fn output(&self, name: &str) -> Option<&Slot> {
        self.outputs.iter().find(|(output, _)| output == name).map(|(_, slot)| slot)
    }
}

impl Arrays {
    /// The array of a slot, which `make` makes if there is none.
    pub fn get(
        &mut self,
        slot: &Slot,
        make: impl FnOnce(&TensorType) -> Result<ArrayId>,
    ) -> Result<ArrayId> {
        if let Some(&array) = self.made.get(slot) {
            return Ok(array);
        }
        let array = make(&slot.ty)?;
        self.made.insert(slot.clone(), array);
        Ok(array)
    }

    /// Puts an array into a slot, in the place of the one that was there.
    pub fn put(&mut self, slot: Slot, array: ArrayId) {
        self.made.insert(slot, array);
    }

    /// Takes the arrays out that nobody wants any more.
    pub fn drain(&mut self, unwanted: impl Fn(&Slot) -> bool) -> Vec<ArrayId> {
        let slots: Vec<Slot> = self.made.keys().filter(|slot| unwanted(slot)).cloned().collect();
        slots.iter().filter_map(|slot| self.made.remove(slot)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mil::{DataType, FunctionBuilder, Var};

    fn ty(shape: &[usize]) -> TensorType {
        TensorType::new(DataType::Float16, shape)
    }

    /// A chunk with inputs of these names that makes a hidden state, keys and values.
    fn chunk(inputs: &[(&str, &[usize])], columns: usize) -> Function {
        let mut b = FunctionBuilder::new();
        for (name, shape) in inputs {
            b.input(name, ty(shape));
        }
        let made: Vec<Var> = [HIDDEN_STATE, "keys", "values"]
            .map(|name| {
                let x = b.input(&format!("of_{name}"), ty(&[1, 4, 1, columns]));
                b.op("identity", name, &[("x", (&x).into())]).unwrap()
            })
            .into();
        b.finish(&made)
    }

    fn known() -> Vec<String> {
        ["embedded", "mask", "of_hidden", "of_keys", "of_values"].map(str::to_owned).into()
    }

    #[test]
    fn what_a_chunk_makes_is_read_where_it_lies_and_no_call_writes_what_it_reads() {
        let first = chunk(&[("embedded", &[1, 4, 1, 8]), ("mask", &[1, 1, 8, 8])], 8);
        let past: &[usize] = &[2, 1, 16, 4];
        let other =
            chunk(&[("incoming", &[1, 4, 1, 8]), ("mask", &[1, 1, 8, 8]), ("past_keys", past)], 8);
        let made = chain(&[&first, &other, &other, &other], &known()).unwrap();
        let input = |i: usize, name: &str| {
            let found = made[i].inputs.iter().find(|(input, _)| input == name);
            &found.unwrap().1
        };
        for i in 1..4 {
            assert_eq!(input(i, INCOMING), made[i - 1].output(HIDDEN_STATE).unwrap());
            // While a chunk runs, what the one before it made is still being kept.
            for name in NEW {
                assert_ne!(made[i].output(name), made[i - 1].output(name), "{name}");
            }
            assert_eq!(input(i, "mask"), input(0, "mask"), "it is written once");
        }
        for bindings in &made {
            let reads = |slot: &Slot| bindings.inputs.iter().any(|(_, input)| input == slot);
            assert!(!bindings.outputs.iter().any(|(_, slot)| reads(slot)), "{bindings:?}");
        }
        assert_ne!(input(1, "past_keys"), input(2, "past_keys"));
        let hidden: std::collections::BTreeSet<_> =
            made.iter().map(|bindings| bindings.output(HIDDEN_STATE)).collect();
        assert_eq!(hidden.len(), 2, "two are enough");
    }

    #[test]
    fn functions_that_do_not_go_together_are_refused() {
        let first = chunk(&[("embedded", &[1, 4, 1, 8])], 8);
        let wider = chunk(&[("incoming", &[1, 5, 1, 8])], 8);
        let foreign = chunk(&[("tokens", &[1, 8])], 8);
        let masked = chunk(&[("embedded", &[1, 4, 1, 8]), ("mask", &[1, 1, 8, 8])], 8);
        let other_mask = chunk(&[("incoming", &[1, 4, 1, 8]), ("mask", &[1, 1, 8, 16])], 8);
        for (chunks, reason) in [
            (&[&first, &wider][..], "go together"),
            (&[&wider], "go together"),
            (&[&masked, &other_mask], "go together"),
            (&[&foreign], "\"tokens\""),
        ] {
            let error = chain(chunks, &known()).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
        let mut b = FunctionBuilder::new();
        let x = b.input("embedded", ty(&[1, 4]));
        let y = b.op("identity", "y", &[("x", (&x).into())]).unwrap();
        let error = chain(&[&b.finish(&[y])], &known()).unwrap_err().to_string();
        assert!(error.contains("no output \"hidden\""), "{error}");
    }

    #[test]
    fn arrays_are_made_once_for_each_slot_and_given_back_by_it() {
        let mut arrays = Arrays::default();
        let mut made = 0;
        let slots = [
            Slot::past(0, "past_keys", &ty(&[1, 1, 4, 4])),
            Slot::past(0, "past_keys", &ty(&[1, 1, 8, 4])),
            Slot::new("mask", &ty(&[1, 1, 4, 4])),
        ];
        for _ in 0..2 {
            for (i, slot) in slots.iter().enumerate() {
                let array = arrays.get(slot, |ty| {
                    assert_eq!(*ty, slot.ty);
                    made += 1;
                    Ok(ArrayId(made - 1))
                });
                assert_eq!(array.unwrap(), ArrayId(i));
            }
        }
        assert_eq!(arrays.drain(|slot| slot.ty.shape[2] == 4), [ArrayId(2), ArrayId(0)]);
        assert_eq!(arrays.drain(|_| true), [ArrayId(1)]);
        assert_eq!(arrays.drain(|_| true), []);
    }
}

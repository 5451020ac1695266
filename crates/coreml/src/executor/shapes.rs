//! Whether functions have the tensors that their names and the model say, before anything is made by these
//! numbers: files may say anything.

use super::other_model;
use crate::lower::{Anatomy, CACHES, DECODE, HIDDEN_STATE, NEW, PAST, prefill_name};
use crate::mil::{Function, TensorType};
use crate::{Error, Result};

/// Most elements of a tensor that the caller makes: more than the mask of 2048 tokens among 131,072 others has.
const MOST_ELEMENTS: usize = 1 << 29;
/// Most places of a mask.
const MOST_PLACES: usize = 1 << 24;

/// The sizes of a function of layers, which all chunks have.
#[derive(Clone, Debug)]
pub(super) struct Form {
    /// The function's name.
    pub name: String,
    /// New tokens.
    columns: usize,
    /// Places of its masks, and of its states.
    places: usize,
    /// Places of its earlier keys and values, where these are inputs.
    history: Option<usize>,
}

impl Form {
    /// A prefill function.
    ///
    /// # Errors
    /// If it is larger than any that can be called.
    pub fn prefill(tokens: usize, history: usize) -> Result<Form> {
        let name = prefill_name(tokens, history);
        let places = tokens.saturating_add(history);
        Form { name, columns: tokens, places, history: Some(history) }.bounded()
    }

    /// The decode function, by a state of its.
    ///
    /// # Errors
    /// As [`Form::prefill`].
    pub fn decode(state: &TensorType) -> Result<Form> {
        let &[_, _, places, _] = &state.shape[..] else { return Err(other_model()) };
        Form { name: DECODE.to_owned(), columns: 1, places, history: None }.bounded()
    }

    fn bounded(self) -> Result<Form> {
        match self.places <= MOST_PLACES {
            true => bounded(&self.name, self.columns, self.places).map(|()| self),
            false => Err(too_large(&self.name)),
        }
    }

    /// Checks the function of this form that a chunk of so many layers has. `hidden` are the features that its
    /// hidden state must have, if that is known.
    ///
    /// # Errors
    /// If its tensors are not those of such a function.
    pub fn check(
        &self,
        function: &Function,
        layers: usize,
        hidden: Option<usize>,
        anatomy: &Anatomy,
    ) -> Result<()> {
        let &Form { columns, places, history, .. } = self;
        let [_, heads, width] = anatomy.cache.unwrap_or([0; 3]);
        let is_mask = |name: &str| anatomy.windows.iter().any(|&w| Anatomy::mask(w) == name);
        let cached = |ty: &TensorType, places: usize| ty.shape == [layers, heads, places, width];
        let inputs = function.tensor_inputs().all(|(name, ty)| match name {
            name if PAST.contains(&name) => history.is_some_and(|history| cached(ty, history)),
            name => !is_mask(name) || ty.shape == [1, 1, columns, places],
        });
        let outputs = function.outputs().all(|(name, ty)| match name {
            HIDDEN_STATE => match ty.shape[..] {
                [1, features, 1, own] => own == columns && hidden.is_none_or(|h| h == features),
                _ => false,
            },
            name => !NEW.contains(&name) || cached(ty, columns),
        });
        // They may be larger than the cache but for their places, which masks have as well.
        let states = function.states().all(|(name, ty)| match ty.shape[..] {
            [l, h, p, w] => {
                CACHES.contains(&name) && l >= layers && h >= heads && p == places && w >= width
            }
            _ => false,
        });
        // What is not made is not there when later tokens want it.
        let has_output = |wanted: &&str| function.outputs().any(|(name, _)| name == *wanted);
        let made = history.is_none() || layers == 0 || NEW.iter().all(has_output);
        if inputs && outputs && states && made { Ok(()) } else { Err(other_model()) }
    }
}

/// Checks the head of a package, and says how many rows of the vocabulary it has.
///
/// # Errors
/// If it reads something else than `input`, or its results have not as many columns.
pub(super) fn check_head(function: &Function, input: &TensorType) -> Result<usize> {
    let inputs = function.tensor_inputs().all(|(name, ty)| name == HIDDEN_STATE && ty == input);
    let rows = function.outputs().try_fold(0usize, |sum, (_, ty)| match ty.shape[..] {
        [1, n, 1, columns] if columns == input.shape[3] => sum.checked_add(n),
        _ => None,
    });
    rows.filter(|_| inputs).ok_or_else(other_model)
}

/// Checks that a tensor of a function that has so many rows and columns can be made.
///
/// # Errors
/// If not.
pub(super) fn bounded(name: &str, rows: usize, columns: usize) -> Result<()> {
    match rows.checked_mul(columns).is_some_and(|n| n <= MOST_ELEMENTS) {
        true => Ok(()),
        false => Err(too_large(name)),
    }
}

fn too_large(name: &str) -> Error {
    Error::Unsupported {
        what: format!("a function {name:?} with so large inputs"),
        instead: "compile the model for fewer tokens at once".into(),
    }
}

#[cfg(test)]
mod tests {
    use baton_graph::testing::Tiny;

    use super::*;
    use crate::mil::{DataType, FunctionBuilder};

    fn ty(shape: &[usize]) -> TensorType {
        TensorType::new(DataType::Float16, shape)
    }

    /// A function of inputs, states and results of these shapes.
    fn function(
        inputs: &[(&str, &[usize])],
        states: &[(&str, &[usize])],
        outputs: &[(&str, &[usize])],
    ) -> Function {
        let mut b = FunctionBuilder::new();
        for (name, shape) in inputs {
            b.input(name, ty(shape));
        }
        for (name, shape) in states {
            b.state(name, ty(shape));
        }
        let mut made = Vec::new();
        for (name, shape) in outputs {
            let x = b.input(&format!("of_{name}"), ty(shape));
            made.push(b.op("identity", name, &[("x", (&x).into())]).unwrap());
        }
        b.finish(&made)
    }

    fn anatomy() -> Anatomy {
        Anatomy::of(&Tiny { layers: 2, ..Tiny::default() }.graph().unwrap()).unwrap()
    }

    #[test]
    fn a_function_with_one_tensor_of_another_size_than_its_name_says_is_refused() {
        let anatomy = anatomy();
        let ([layers, heads, width], hidden) = (anatomy.cache.unwrap(), anatomy.hidden);
        let mask = Anatomy::mask(anatomy.windows[0]);
        let form = Form::prefill(8, 16).unwrap();
        let new = [layers, heads, 8, width];
        let honest = [
            vec![1, 1, 8, 24],
            vec![layers, heads, 16, width],
            vec![1, hidden, 1, 8],
            new.to_vec(),
            new.to_vec(),
        ];
        let check = |shapes: &[Vec<usize>; 5]| {
            let [at, past, hidden_state, keys, values] = shapes;
            let inputs = [(mask.as_str(), &at[..]), (PAST[0], past), (PAST[1], past)];
            let outputs = [(HIDDEN_STATE, &hidden_state[..]), (NEW[0], keys), (NEW[1], values)];
            let function = function(&inputs, &[], &outputs);
            form.check(&function, layers, Some(hidden), &anatomy)
        };
        check(&honest).unwrap();
        for which in 0..honest.len() {
            for dim in 0..4 {
                for change in [-1, 1] {
                    let mut lying = honest.clone();
                    lying[which][dim] = lying[which][dim].saturating_add_signed(change);
                    let error = check(&lying).unwrap_err().to_string();
                    assert!(error.contains("another model"), "{lying:?}: {error}");
                }
            }
        }
        // Keys without values.
        let outputs = [(HIDDEN_STATE, &honest[2][..]), (NEW[0], &new)];
        assert!(form.check(&function(&[], &[], &outputs), layers, Some(hidden), &anatomy).is_err());
    }

    #[test]
    fn states_may_be_larger_than_the_cache_but_have_the_places_of_the_masks() {
        let anatomy = anatomy();
        let ([layers, heads, width], hidden) = (anatomy.cache.unwrap(), anatomy.hidden);
        let mask = Anatomy::mask(anatomy.windows[0]);
        let check = |keys: [usize; 4], values: [usize; 4], places: usize| {
            let states = [(CACHES[0], &keys[..]), (CACHES[1], &values)];
            let (at, made) = ([1, 1, 1, places], [1, hidden, 1, 1]);
            let function = function(&[(&mask, &at)], &states, &[(HIDDEN_STATE, &made)]);
            let form = Form::decode(&ty(&keys)).unwrap();
            form.check(&function, layers, Some(hidden), &anatomy)
        };
        let own = [layers, heads, 64, width];
        let larger = [layers + 1, heads + 1, 64, width + 1];
        check(own, own, 64).unwrap();
        check(larger, larger, 64).unwrap();
        assert!(check(own, own, 63).is_err());
        assert!(check(own, [layers, heads, 65, width], 64).is_err());
        for dim in [0, 1, 3] {
            let mut smaller = own;
            smaller[dim] -= 1;
            assert!(check(smaller, own, 64).is_err(), "{smaller:?}");
            assert!(check(own, smaller, 64).is_err(), "{smaller:?}");
        }
    }

    #[test]
    fn functions_that_nobody_could_call_are_refused_by_their_numbers() {
        for (tokens, history) in [(1 << 40, 0), (1, 1 << 40), (usize::MAX, 1), (1 << 16, 0)] {
            let error = Form::prefill(tokens, history).unwrap_err().to_string();
            assert!(error.contains("fewer tokens"), "{error}");
        }
        assert!(Form::decode(&ty(&[1, 1, 1 << 40, 1])).is_err());
        assert!(Form::decode(&ty(&[1, 1])).is_err());
        Form::prefill(2048, 131_072).unwrap();
        assert!(bounded("head", 1 << 20, 1 << 10).is_err());
        bounded("head", 262_144, 64).unwrap();
    }

    #[test]
    fn a_head_says_how_many_rows_it_has_and_has_the_columns_of_its_input() {
        let head = |input: &[usize], outputs: &[(&str, &[usize])]| {
            // The results come from nothing: inputs of their own would be others than the hidden state.
            let mut b = FunctionBuilder::new();
            let x = b.input(HIDDEN_STATE, ty(input));
            let mut made = Vec::new();
            for (name, shape) in outputs {
                let shape = crate::mil::Value::sizes(shape);
                made.push(
                    b.op("reshape", name, &[("x", (&x).into()), ("shape", shape.into())]).unwrap(),
                );
            }
            check_head(&b.finish(&made), &ty(&[1, 8, 1, 2]))
        };
        let right: (&str, &[usize]) = ("logits_0", &[1, 8, 1, 2]);
        assert_eq!(head(&[1, 8, 1, 2], &[right, ("logits_1", &[1, 8, 1, 2])]).unwrap(), 16);
        for (input, output) in [
            ([1, 8, 1, 2], [1, 16, 1, 1]),
            ([1, 8, 1, 2], [1, 4, 1, 4]),
            ([1, 8, 1, 2], [2, 4, 1, 2]),
            ([1, 4, 1, 4], [1, 8, 1, 2]),
        ] {
            assert!(head(&input, &[("logits_0", &output)]).is_err(), "{input:?}, {output:?}");
        }
    }
}

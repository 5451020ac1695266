//! Values of flags: numbers, lists such as `1,2`, ranges such as `128-512*2`.

use std::str::FromStr;

/// Most numbers that one flag may stand for: more is a slip of the finger.
const MOST: usize = 1000;

/// The numbers that one occurrence of a flag stands for, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

/// Tokens of a prompt and of the answer to it, such as `448,64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens of the answer.
    pub generated: usize,
}

impl Numbers {
    /// All numbers of a flag that may occur several times.
    pub fn all(occurrences: &[Numbers]) -> Vec<usize> {
        occurrences.iter().flat_map(|numbers| numbers.0.iter().copied()).collect()
    }
}

impl FromStr for Numbers {
    type Err = String;

    /// Reads `A`, `A-B`, `A-B+STEP`, `A-B*FACTOR`, and lists of them with commas between.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            let (first, range) = part.split_once('-').unwrap_or((part, ""));
            let first = number(first)?;
            if !part.contains('-') {
                numbers.push(first);
                continue;
            }
            let (last, step) = match range.find(['+', '*']) {
                Some(at) => (&range[..at], Some(&range[at..])),
                None => (range, None),
            };
            let last = number(last)?;
            if last < first {
                return Err(format!("the range {part} ends before it begins"));
            }
            let step = step.unwrap_or("+1");
            let (multiplies, size) = (step.starts_with('*'), number(&step[1..])?);
            let mut next = Some(first);
            while let Some(n) = next.filter(|&n| n <= last) {
                if numbers.len() == MOST {
                    return Err(format!("{text} stands for more than {MOST} numbers"));
                }
                numbers.push(n);
                next = if multiplies { n.checked_mul(size) } else { n.checked_add(size) };
                if next == Some(n) {
                    return Err(format!("the range {part} never ends"));
                }
            }
        }
        Ok(Numbers(numbers))
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (prompt, generated) =
            text.split_once(',').ok_or_else(|| format!("{text:?} is no pair such as 448,64"))?;
        Ok(Pair { prompt: number(prompt)?, generated: number(generated)? })
    }
}

fn number(text: &str) -> Result<usize, String> {
    // No number of tokens, and no number of threads, comes near this.
    match text.parse() {
        Ok(n) if n <= 1 << 24 => Ok(n),
        Ok(n) => Err(format!("{n} is too large")),
        Err(_) => Err(format!("{text:?} is no number, list such as 1,2 or range such as 1-8*2")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges() {
        let table: &[(&str, &[usize])] = &[
            ("512", &[512]),
            ("0", &[0]),
            ("1,2,8", &[1, 2, 8]),
            ("1-4", &[1, 2, 3, 4]),
            ("0-1024+512", &[0, 512, 1024]),
            ("128-1000*2", &[128, 256, 512]),
            ("1-2,8,16-64*2", &[1, 2, 8, 16, 32, 64]),
            ("5-5*1", &[]),
        ];
        for (text, expected) in table {
            match text.parse::<Numbers>() {
                Ok(numbers) => assert_eq!(&numbers.0, expected, "{text}"),
                Err(error) => assert!(expected.is_empty() && error.contains("never"), "{error}"),
            }
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for text in ["", "x", "1,", "-1", "1-", "1-x", "4-1", "1-9+0", "0-9*2", "1-9+", "1e3"] {
            assert!(text.parse::<Numbers>().is_err(), "{text}");
        }
        assert!("0-9999999".parse::<Numbers>().unwrap_err().contains("more than 1000"));
        assert!("99999999999999".parse::<Numbers>().unwrap_err().contains("too large"));
    }

    #[test]
    fn pairs() {
        assert_eq!("448,64".parse(), Ok(Pair { prompt: 448, generated: 64 }));
        for text in ["448", "448,", "448,64,1", "a,b"] {
            assert!(text.parse::<Pair>().is_err(), "{text}");
        }
    }
}

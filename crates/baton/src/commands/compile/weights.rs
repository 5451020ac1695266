//! How the package's weights are written, by the command's arguments.

use baton_coreml::lower::{
    Energies, Form, Forms, INTEGER_BITS, Integer, PALETTE_BITS, Palette, Sample, mixed_palettes,
};
use baton_graph::Graph;
use baton_weights::Weights;

use crate::failure::usage;

/// Bits of a weight in half precision.
const HALF: f32 = 16.0;
/// Output channels that share a table, if nothing else is asked for.
const GROUP: usize = 16;

/// The arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Bits of a weight: 16 are half precision, fewer an index into a table of values; an average such as
    /// 4.5 gives the matrices that lose most more than others
    #[arg(long, value_name = "N", default_value_t = HALF, value_parser = bits)]
    bits: f32,
    /// Output channels that share a table of values; 0 for one table for each matrix
    #[arg(long, value_name = "N", default_value_t = GROUP)]
    group: usize,
    /// Weights as integers with scales instead of indices
    #[arg(long, value_name = "TYPE", conflicts_with_all = ["bits", "group"])]
    quantize: Option<Integers>,
    /// Weights of an output channel that share a scale; 0 for one scale for each channel
    #[arg(long, value_name = "N", default_value_t = 0, requires = "quantize")]
    block: usize,
    /// Count the errors of all weights alike, however large their inputs are
    #[arg(long)]
    plain_kmeans: bool,
}

/// Integers that weights can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Integers {
    Int4,
    Int8,
}

fn bits(text: &str) -> Result<f32, String> {
    let (least, most) = (PALETTE_BITS[0], PALETTE_BITS[PALETTE_BITS.len() - 1]);
    let known = |bits: &f32| *bits == HALF || (f32::from(least)..=f32::from(most)).contains(bits);
    let found = text.parse().ok().filter(known);
    found.ok_or_else(|| {
        format!("16, one of {PALETTE_BITS:?}, or an average between {least} and {most}")
    })
}

impl Args {
    /// An option that was given.
    pub fn given(&self) -> Option<&'static str> {
        super::given([
            (self.bits != HALF, "--bits"),
            (self.group != GROUP, "--group"),
            (self.quantize.is_some(), "--quantize"),
            (self.plain_kmeans, "--plain-kmeans"),
        ])
    }

    /// Bits that a weight takes at least.
    pub fn least_bits(&self) -> f32 {
        match self.quantize {
            Some(integers) => f32::from(INTEGER_BITS[integers as usize]),
            // An average is reached from below, by whole bits.
            None => self.bits.floor(),
        }
    }

    /// What is to be counted of the energies of features.
    pub fn energies(&self, found: Energies) -> Energies {
        if self.plain_kmeans { Energies::new() } else { found }
    }

    /// The form of each matrix.
    pub fn forms(
        &self,
        graph: &Graph,
        weights: &Weights,
        energies: &Energies,
        sample: Sample<'_>,
    ) -> anyhow::Result<Forms> {
        if let Some(integers) = self.quantize {
            let bits = INTEGER_BITS[integers as usize];
            return Ok(Form::Integer(Integer { bits, block: self.block }).into());
        }
        let group = self.group;
        if self.bits == HALF {
            if self.plain_kmeans {
                return Err(usage(
                    "--plain-kmeans is for weights of fewer than 16 bits".to_owned(),
                ));
            }
            return Ok(Form::Half.into());
        }
        match PALETTE_BITS.into_iter().find(|&bits| f32::from(bits) == self.bits) {
            Some(bits) => Ok(Form::Palette(Palette { bits, group }).into()),
            None => Ok(mixed_palettes(graph, weights, energies, self.bits, group, sample)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_those_of_tables_an_average_of_them_or_sixteen() {
        for (text, expected) in [("16", 16.0), ("4", 4.0), ("4.5", 4.5), ("1", 1.0), ("5", 5.0)] {
            assert_eq!(bits(text), Ok(expected));
        }
        for text in ["0", "0.9", "8.1", "12", "nan", "inf", "-4", "four"] {
            assert!(bits(text).unwrap_err().contains("average"), "{text}");
        }
    }
}

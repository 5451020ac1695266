//! Which instruction set the kernels use: detected once, or forced by name.

use std::fmt;
use std::str::FromStr;

/// The environment variable that forces an instruction set, by [`Isa`]'s names.
pub const ENV: &str = "BATON_CPU";

/// A set of vector instructions that a family of kernels is written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust, for any machine.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 (F, BW, VL, VNNI) beside AVX2.
    Avx512,
    /// AArch64 with dot product instructions.
    Neon,
    /// AArch64 with 8-bit matrix multiplication beside dot products.
    NeonI8mm,
}

/// An instruction set was asked for that is unknown or that this machine lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnsupportedIsa {
    /// The processor, or this build's architecture, lacks it.
    #[error("this machine has no {wanted}; it has: {}", names(.available))]
    Missing {
        /// What was asked for.
        wanted: Isa,
        /// What could be asked for instead.
        available: Vec<Isa>,
    },
    /// No instruction set has that name.
    #[error("no instruction set is called {name:?}; say portable, avx2, avx512, neon or i8mm")]
    Unknown {
        /// What was asked for.
        name: String,
    },
}

fn names(isas: &[Isa]) -> String {
    isas.iter().map(Isa::to_string).collect::<Vec<_>>().join(", ")
}

impl Isa {
    const ALL: [Isa; 5] = [Isa::Portable, Isa::Avx2, Isa::Avx512, Isa::Neon, Isa::NeonI8mm];

    /// The best that this machine has.
    pub fn detect() -> Isa {
        *Isa::available().last().expect("the portable kernels run anywhere")
    }

    /// What the environment variable [`ENV`] forces, else the best that this machine has.
    ///
    /// # Errors
    /// If the variable names something unknown, or something this machine lacks.
    pub fn from_env() -> Result<Isa, UnsupportedIsa> {
        match std::env::var(ENV) {
            Ok(name) if !name.is_empty() => name.parse::<Isa>()?.checked(),
            _ => Ok(Isa::detect()),
        }
    }

    /// Everything that this machine has, the best last.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine has it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => has_avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                has_avx2()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => {
                std::arch::is_aarch64_feature_detected!("dotprod")
                    && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Itself, if this machine has it.
    ///
    /// # Errors
    /// [`UnsupportedIsa::Missing`] if not.
    pub fn checked(self) -> Result<Isa, UnsupportedIsa> {
        if self.is_available() {
            Ok(self)
        } else {
            Err(UnsupportedIsa::Missing { wanted: self, available: Isa::available() })
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
            Isa::NeonI8mm => "i8mm",
        })
    }
}

impl FromStr for Isa {
    type Err = UnsupportedIsa;

    fn from_str(name: &str) -> Result<Isa, UnsupportedIsa> {
        let wanted = name.to_ascii_lowercase();
        let found = Isa::ALL.into_iter().find(|isa| isa.to_string() == wanted);
        found.ok_or_else(|| UnsupportedIsa::Unknown { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for isa in Isa::ALL {
            assert_eq!(isa.to_string().parse(), Ok(isa));
        }
        assert!(matches!("sse9".parse::<Isa>(), Err(UnsupportedIsa::Unknown { .. })));
    }

    #[test]
    fn what_is_missing_is_an_error_that_names_the_rest() {
        assert_eq!(Isa::detect().checked(), Ok(Isa::detect()));
        for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
            let message = isa.checked().unwrap_err().to_string();
            assert!(message.contains("portable"), "{message}");
        }
    }
}

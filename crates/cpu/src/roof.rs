//! The machine's own limits, which no kernel can pass: how fast memory is read, and how many integer
//! products its vector units do. A roofline is drawn from the two.

use std::hint::black_box;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use crate::isa::Isa;

/// Bytes that are read: several times what caches hold.
const READ_BYTES: usize = 512 << 20;
/// How often; the best counts.
const ROUNDS: usize = 5;
/// How long products are counted.
const PRODUCTS_TIME: Duration = Duration::from_millis(200);

/// Bytes per second that `threads` threads read from memory, each its own part.
///
/// # Errors
/// If there is no memory for it.
pub fn read_rate(threads: usize) -> io::Result<f64> {
    let threads = threads.max(1);
    let mut memory = MmapMut::map_anon(READ_BYTES)?;
    #[cfg(target_os = "linux")]
    {
        // As the weights have it. Without larger pages all is well too.
        let _ = memory.advise(memmap2::Advice::HugePage);
    }
    let part = READ_BYTES / threads / 64 * 64;
    let touch = |bytes: &mut [u8]| bytes.fill(1);
    thread::scope(|scope| {
        memory.chunks_mut(part).for_each(|bytes| drop(scope.spawn(move || touch(bytes))));
    });
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        thread::scope(|scope| {
            let parts = memory.chunks_exact(part);
            parts.for_each(|bytes| drop(scope.spawn(move || black_box(sum(bytes)))));
        });
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok((part * threads) as f64 / best)
}

/// Adds up all words of whole cache lines, which a compiler makes wide loads of.
fn sum(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 8];
    for line in bytes.as_chunks::<64>().0 {
        for (sum, word) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_le_bytes(*word));
        }
    }
    sums.iter().fold(0, |all, sum| all.wrapping_add(*sum))
}

/// Integer operations per second that `threads` threads do at most with the instructions that
/// `isa`'s kernels multiply with: a product of bytes and its addition are two. None where that is
/// not measured.
pub fn product_rate(isa: Isa, threads: usize) -> Option<f64> {
    let rounds = rounds(isa)?;
    let rates = thread::scope(|scope| {
        let each: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(move || rate(rounds))).collect();
        each.into_iter().map(|thread| thread.join().unwrap_or(0.0)).collect::<Vec<f64>>()
    });
    Some(rates.iter().sum())
}

/// Does as many rounds as it is told and says how many operations those were.
type Rounds = fn(u64) -> u64;

fn rate(rounds: Rounds) -> f64 {
    let start = Instant::now();
    let mut operations = 0;
    while start.elapsed() < PRODUCTS_TIME {
        operations += rounds(10_000);
    }
    operations as f64 / start.elapsed().as_secs_f64()
}

/// The loop for an instruction set that this machine has.
fn rounds(isa: Isa) -> Option<Rounds> {
    if !isa.is_available() {
        return None;
    }
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instruction set.
        Isa::Avx2 => Some(|n| unsafe { x86::avx2(n) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instruction set.
        Isa::Avx512 => Some(|n| unsafe { x86::avx512(n) }),
        _ => None,
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// Sums that do not wait for each other, enough to keep every unit busy.
    const SUMS: usize = 12;

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(rounds: u64) -> u64 {
        let (a, b) = (black_box(_mm256_set1_epi8(3)), black_box(_mm256_set1_epi8(-5)));
        let ones = black_box(_mm256_set1_epi16(1));
        let mut sums = [_mm256_setzero_si256(); SUMS];
        for _ in 0..rounds {
            // Opaque, so that the products are made anew in every round.
            let a = black_box(a);
            for sum in &mut sums {
                let pairs = _mm256_maddubs_epi16(a, _mm256_xor_si256(b, *sum));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        black_box(sums);
        rounds * SUMS as u64 * 32 * 2
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
    pub(super) fn avx512(rounds: u64) -> u64 {
        let (a, b) = (black_box(_mm512_set1_epi8(3)), black_box(_mm512_set1_epi8(-5)));
        let mut sums = [_mm512_setzero_si512(); SUMS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
        rounds * SUMS as u64 * 64 * 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_a_plausible_speed() {
        let rate = read_rate(2).unwrap();
        // From a slow card in a slow bus to more than any machine has.
        assert!((1e8..1e13).contains(&rate), "{rate}");
    }

    #[test]
    fn vector_units_have_a_plausible_speed() {
        for isa in Isa::available() {
            match product_rate(isa, 1) {
                Some(rate) => assert!((1e8..1e13).contains(&rate), "{isa}: {rate}"),
                None => assert!(!matches!(isa, Isa::Avx2 | Isa::Avx512), "{isa}"),
            }
        }
    }

    #[test]
    fn the_sum_takes_every_byte() {
        let bytes: Vec<u8> = (0..=255).cycle().take(640).collect();
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        assert_eq!(sum(&bytes), words.fold(0, u64::wrapping_add));
    }
}

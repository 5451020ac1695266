//! Which unit does what: said by the user, or found out from what was measured, or from what the
//! hardware could do.

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Mutex, PoisonError};

use baton_graph::Roof;
use baton_models::Model;

use crate::{Error, LoadOptions, PassWork, Profiles, RelayOptions, Result, Speeds, UnitKind};

/// The request that plans are compared by: tokens of the prompt and of the answer.
const TYPICAL: (usize, usize) = (1024, 256);
/// Chunks are no longer than this, so that an answer can be cancelled and blocks follow each other.
const LONGEST_CHUNK: usize = 2048;
/// A chunk is long enough if it is computed at this share of the best rate.
const GOOD_RATE: f64 = 0.9;
/// Prompts up to this length are looked at for the crossover.
const LONGEST_CROSSOVER: usize = 8192;
/// Lengths at which a roofline is read.
const ESTIMATED: [usize; 5] = [8, 32, 128, 512, 2048];
/// Shorter prompts are not worth the way to another machine, unless the user says so.
const REMOTE_CROSSOVER: usize = 128;
/// On the network a block takes long, and the next chunk is computed only behind it: short ones let
/// the two ends and the network work at the same time.
const REMOTE_CHUNK: usize = 256;
/// What handing over costs where nobody measured it: memory is read or written so many times.
const HANDOFF_PASSES: f64 = 4.0;

/// What is said of the units, and where to look for the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitChoice {
    /// Computes prompts; whichever is best, if none.
    pub prefill: Option<UnitKind>,
    /// Writes answers; whichever is best, if none.
    pub decode: Option<UnitKind>,
    /// The fewest new tokens that are handed over; what pays, if none.
    pub crossover: Option<usize>,
    /// What was measured earlier.
    pub profiles: Option<Profiles>,
}

/// Which unit does what, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// Computes prompts.
    pub prefill: UnitKind,
    /// Writes answers.
    pub decode: UnitKind,
    /// What is handed over.
    pub relay: RelayOptions,
    /// The reasons, a line for each.
    pub why: Vec<String>,
}

impl UnitChoice {
    /// Decides for a model that is loaded with `options`.
    ///
    /// # Errors
    /// If a unit is named that cannot be used, or the model's tensors cannot be listed.
    pub fn choose(&self, model: &Model, options: &LoadOptions) -> Result<Chosen> {
        let packages = model.packages();
        let mut units = match packages {
            Some(_) => vec![UnitKind::CoreMl],
            None => UnitKind::available(),
        };
        for named in [self.prefill, self.decode].into_iter().flatten() {
            if !units.contains(&named) {
                if let Some(folder) = packages {
                    let folder = folder.to_owned();
                    return Err(Error::PackagesAlone { folder, unit: named });
                }
                units.push(named);
            }
        }
        let relay = RelayOptions { chunk: options.batch_tokens, ..options.relay };
        if let Some(remote) = &options.remote {
            return self.beside(&remote.address, model, options, &units);
        }
        let only = match (self.prefill, self.decode, &units[..]) {
            (Some(prefill), Some(decode), _) if prefill == decode => {
                Some((prefill, "as asked for"))
            }
            (_, _, &[one]) if packages.is_some() => Some((one, "the model is there as packages")),
            (_, _, &[one]) => Some((one, "the only unit of this machine")),
            _ if model.is_embedding() => {
                let named = self.decode.or(self.prefill);
                Some((named.unwrap_or_default(), "vectors are made on one unit"))
            }
            _ => None,
        };
        if let Some((unit, why)) = only {
            let why = vec![format!("prompts and answers on {unit}: {why}")];
            return Ok(Chosen { prefill: unit, decode: unit, relay, why });
        }
        if let (Some(prefill), Some(decode), Some(crossover)) =
            (self.prefill, self.decode, self.crossover)
        {
            let relay = RelayOptions { crossover, ..relay };
            let why = format!(
                "prompts on {prefill} from {crossover} new tokens on, by {}; answers on {decode}, as \
                 asked for",
                relay.chunk
            );
            return Ok(Chosen { prefill, decode, relay, why: vec![why] });
        }
        let (speeds, source) = match self.profile(model, &units) {
            Some(speeds) => (speeds, Source::Measured),
            None => (estimates(&units, model, options)?, Source::Estimated),
        };
        let mut chosen = plan(&speeds, (self.prefill, self.decode), relay, source);
        for unit in units.iter().filter(|unit| speeds.iter().all(|(known, _)| known != *unit)) {
            chosen.why.push(format!("{unit}: its speed is not known; `baton tune` measures it"));
        }
        if let Some(crossover) = self.crossover {
            chosen.relay.crossover = crossover;
            chosen.why.push(format!("handed over from {crossover} new tokens on, as asked for"));
        }
        Ok(chosen)
    }

    /// Decides where answers are written if prompts are read on another machine.
    fn beside(
        &self,
        address: &str,
        model: &Model,
        options: &LoadOptions,
        units: &[UnitKind],
    ) -> Result<Chosen> {
        let decode = match (self.decode, units) {
            (Some(named), _) => named,
            (None, [one]) => *one,
            (None, units) => {
                let speeds = match self.profile(model, units) {
                    Some(speeds) => speeds,
                    None => estimates(units, model, options)?,
                };
                let fastest =
                    |a: &&(_, Speeds), b: &&(_, Speeds)| a.1.decode.total_cmp(&b.1.decode);
                speeds.iter().min_by(fastest).map_or(units[0], |(unit, _)| *unit)
            }
        };
        let crossover = self.crossover.unwrap_or(REMOTE_CROSSOVER);
        let chunk = options.batch_tokens.min(REMOTE_CHUNK);
        let relay = RelayOptions { crossover, chunk, ..options.relay };
        let why = format!(
            "prompts on {address} from {crossover} new tokens on, by {chunk}; answers on {decode}"
        );
        Ok(Chosen { prefill: decode, decode, relay, why: vec![why] })
    }

    /// What was measured, if it was of all these units, as they are now.
    fn profile(&self, model: &Model, units: &[UnitKind]) -> Option<Vec<Known>> {
        let profile = self.profiles.as_ref()?.find(&model.fingerprint())?;
        known(&profile.units, units, UnitKind::device)
    }
}

/// What was measured of these units, if it was of all, on the devices that they have now.
fn known(
    measured: &[Speeds],
    units: &[UnitKind],
    device: impl Fn(UnitKind) -> String,
) -> Option<Vec<Known>> {
    let speeds = |unit: &UnitKind| {
        let found = measured.iter().find(|speeds| speeds.unit == unit.name())?;
        (found.device == device(*unit)).then(|| (*unit, found.clone()))
    };
    units.iter().map(speeds).collect()
}

/// A unit with its speeds.
type Known = (UnitKind, Speeds);

/// Where speeds come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Measured,
    Estimated,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Measured => "measured",
            Source::Estimated => "estimated from the hardware's limits",
        })
    }
}

impl Source {
    /// The tokens that `speeds` is given at once, `most` at most. A roofline knows nothing of what every pass
    /// costs besides, so that the shortest would look best: of those that were only estimated none is short.
    fn chunk(self, speeds: &Speeds, most: usize) -> usize {
        match self {
            Source::Measured => chunk_of(speeds, most),
            Source::Estimated => most,
        }
    }
}

/// What the units could do at best, as far as they tell.
fn estimates(units: &[UnitKind], model: &Model, options: &LoadOptions) -> Result<Vec<Known>> {
    let work = PassWork::of(model)?;
    let mut known = Vec::new();
    for &unit in units {
        match roof(unit, options) {
            Ok(Some(roof)) => known.push((unit, estimate(unit, &roof, &work))),
            Ok(None) => {}
            // If somebody named it, loading says why it cannot be used.
            Err(error) => tracing::warn!("{unit} is left out: {error}"),
        }
    }
    Ok(known)
}

/// A unit's limits, which are looked for once.
fn roof(unit: UnitKind, options: &LoadOptions) -> Result<Option<Roof>> {
    /// A unit with so many threads.
    type Key = (UnitKind, Option<usize>);
    static KNOWN: Mutex<Vec<(Key, Option<Roof>)>> = Mutex::new(Vec::new());
    let key = (unit, options.threads);
    // A panic elsewhere leaves no entry half written. Who waits here needs the same.
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, roof)) = known.iter().find(|(known, _)| *known == key) {
        return Ok(*roof);
    }
    let roof = unit.unit(options)?.roof();
    known.push((key, roof));
    Ok(roof)
}

fn estimate(unit: UnitKind, roof: &Roof, work: &PassWork) -> Speeds {
    let prefill = ESTIMATED.map(|n| (n, work.seconds(roof, n, n))).to_vec();
    let cache: f64 = work.layers.iter().map(|(bytes, _)| bytes).sum();
    let handoff = HANDOFF_PASSES * cache / roof.read;
    let decode = work.seconds(roof, 1, TYPICAL.0);
    let device = unit.device();
    Speeds { unit: unit.name().into(), device, prefill, decode, handoff: (handoff, handoff) }
}

/// The best plan among units of these speeds; `fixed` are those for prompts and answers that the user
/// named. Units of which nothing is known are used only if they were.
fn plan(
    speeds: &[Known],
    fixed: (Option<UnitKind>, Option<UnitKind>),
    relay: RelayOptions,
    source: Source,
) -> Chosen {
    let allowed = |fixed: Option<UnitKind>, unit| fixed.is_none_or(|fixed| fixed == unit);
    let mut best: Option<(f64, &Known, &Known)> = None;
    for prefill in speeds.iter().filter(|(unit, _)| allowed(fixed.0, *unit)) {
        for decode in speeds.iter().filter(|(unit, _)| allowed(fixed.1, *unit)) {
            let (prompt, answer) = TYPICAL;
            let reading = match prefill.0 == decode.0 {
                true => prefill.1.prefill(prompt),
                false => {
                    let chunk = source.chunk(&prefill.1, relay.chunk);
                    relayed(prompt, &prefill.1, &decode.1, chunk)
                }
            };
            let seconds = reading + answer as f64 * decode.1.decode;
            if best.is_none_or(|(least, ..)| seconds < least) {
                best = Some((seconds, prefill, decode));
            }
        }
    }
    let Some((_, (prefill, reads), (decode, writes))) = best else {
        let named = fixed.1.or(speeds.first().map(|(unit, _)| *unit)).unwrap_or_default();
        let prefill = fixed.0.unwrap_or(named);
        let why =
            format!("prompts on {prefill}, answers on {named}: nothing is known of their speed");
        return Chosen { prefill, decode: named, relay, why: vec![why] };
    };
    let rate = |speeds: &Speeds| TYPICAL.0 as f64 / speeds.prefill(TYPICAL.0);
    let mut why: Vec<String> = speeds
        .iter()
        .map(|(unit, speeds)| {
            let (prefill, decode) = (rate(speeds), 1.0 / speeds.decode);
            format!("{unit}: {prefill:.0} tokens/s of prompts, {decode:.1} of answers, {source}")
        })
        .collect();
    let (prefill, decode) = (*prefill, *decode);
    if prefill == decode {
        why.push(format!("prompts and answers on {decode}"));
        return Chosen { prefill, decode, relay, why };
    }
    let chunk = source.chunk(reads, relay.chunk);
    match crossover(reads, writes, chunk) {
        Some(crossover) => {
            why.push(format!(
                "prompts on {prefill} from {crossover} new tokens on, by {chunk}; answers on {decode}"
            ));
            Chosen { prefill, decode, relay: RelayOptions { crossover, chunk, ..relay }, why }
        }
        // Handing over never pays, but the unit for prompts was asked for.
        None if fixed.0.is_some() => {
            why.push(format!(
                "prompts on {prefill}, as asked for, though handing over never pays; answers on {decode}"
            ));
            Chosen { prefill, decode, relay: RelayOptions { chunk, ..relay }, why }
        }
        None => {
            why.push(format!("prompts and answers on {decode}: handing over never pays"));
            Chosen { prefill: decode, decode, relay, why }
        }
    }
}

/// Seconds until `n` tokens are read by one unit, their cache is where answers are written, and the
/// token behind them is computed there. The one that reads hands over what it has computed before it
/// goes on; the other takes over meanwhile all but the last chunk.
fn relayed(n: usize, reads: &Speeds, writes: &Speeds, chunk: usize) -> f64 {
    let (out, into) = (n as f64 * reads.handoff.0, n.min(chunk) as f64 * writes.handoff.1);
    reads.prefill(n) + out + into + writes.decode
}

/// The shortest chunk that is computed at a good rate, and no longer than `most`.
fn chunk_of(speeds: &Speeds, most: usize) -> usize {
    let rates = speeds.prefill.iter().filter(|(n, _)| *n <= LONGEST_CHUNK);
    let rates: Vec<(usize, f64)> = rates.map(|&(n, time)| (n, n as f64 / time)).collect();
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let good = rates.iter().find(|(_, rate)| *rate >= GOOD_RATE * best);
    good.map_or(most, |(n, _)| *n).min(most).max(1)
}

/// The fewest new tokens with which handing over is faster than computing them where answers are
/// written. The last token is computed there in any case.
fn crossover(reads: &Speeds, writes: &Speeds, chunk: usize) -> Option<usize> {
    let pays = |n: usize| relayed(n, reads, writes, chunk) < writes.prefill(n + 1);
    (1..=LONGEST_CROSSOVER).find(|&n| pays(n) && pays(2 * n))
}

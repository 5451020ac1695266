//! What each phase of an answer took of the unit that computed it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::Lanes;
use crate::energy::{Meter, Rails, Reading};

/// What a phase took. Where several answers are made at once, it is of all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phase {
    /// The unit that computed it.
    pub unit: Option<&'static str>,
    /// Share of the phase's time in which that unit computed.
    pub utilisation: Option<f64>,
    /// Joules of the whole machine's processors in that time, if it tells.
    pub joules: Option<f64>,
    /// The same by unit, where they are told apart.
    pub rails: Option<Rails>,
}

/// Looks at units and counters when a phase begins and ends.
#[derive(Debug, Default)]
pub(crate) struct PhaseClock {
    lanes: Option<Lanes>,
    start: Option<Moment>,
    first_token: Option<Moment>,
}

#[derive(Debug)]
struct Moment {
    at: Instant,
    /// What the units for prompts and for answers had worked.
    busy: [Duration; 2],
    energy: Option<Reading>,
}

impl PhaseClock {
    pub(crate) fn new(lanes: Option<&Lanes>) -> Self {
        PhaseClock { lanes: lanes.cloned(), start: None, first_token: None }
    }

    /// The first step begins.
    pub(crate) fn start(&mut self) {
        if self.start.is_none() {
            self.start = self.lanes.as_ref().map(Moment::now);
        }
    }

    /// The first token is there; what it took, of the unit for prompts if that handed over anything.
    pub(crate) fn prefilled(&mut self, handed_over: bool) -> Phase {
        let now = self.lanes.as_ref().map(Moment::now);
        let phase = self.phase(usize::from(!handed_over), self.start.as_ref(), now.as_ref());
        self.first_token = now;
        phase
    }

    /// The last token is there; what those behind the first took.
    pub(crate) fn ended(&self) -> Phase {
        let now = self.lanes.as_ref().map(Moment::now);
        self.phase(1, self.first_token.as_ref(), now.as_ref())
    }

    fn phase(&self, which: usize, from: Option<&Moment>, to: Option<&Moment>) -> Phase {
        let (Some(lanes), Some(from), Some(to)) = (&self.lanes, from, to) else {
            return Phase::default();
        };
        let lane = [&lanes.prefill, &lanes.decode][which];
        let time = (to.at - from.at).as_secs_f64();
        let busy = (to.busy[which] - from.busy[which]).as_secs_f64();
        let energy = from.energy.as_ref().zip(to.energy.as_ref());
        Phase {
            unit: Some(lane.unit()),
            utilisation: (time > 0.0).then(|| (busy / time).min(1.0)),
            joules: energy.map(|(from, to)| meter().joules(from, to)),
            rails: energy.and_then(|(from, to)| meter().rails(from, to)),
        }
    }
}

impl Moment {
    fn now(lanes: &Lanes) -> Moment {
        let busy = [lanes.prefill.busy(), lanes.decode.busy()];
        Moment { at: Instant::now(), busy, energy: meter().read().ok() }
    }
}

fn meter() -> &'static Meter {
    static METER: OnceLock<Meter> = OnceLock::new();
    METER.get_or_init(Meter::find)
}

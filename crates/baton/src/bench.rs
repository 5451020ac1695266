//! Measuring speed: what `baton bench` does.
//!
//! ```text
//! numbers    values of flags: lists and ranges
//! plan       from flags to settings of the engine and tests
//! subject    the model that is measured, and the time to load it
//! passes     one test: forward passes with a clock
//! stats      means and deviations
//! machine    what the model runs on
//! record     everything known of one test, as programs read it
//! roofline   what the machine's limits would allow
//! output     Markdown, JSON, JSON lines, CSV
//! plot       an image of results under the roofline
//! against    requests to us and to another server in turn
//! ```
//!
//! Rows, flags and fields are those that users of `llama-bench` know, so that scripts and eyes that
//! read its output read this one's.

pub mod against;
pub mod machine;
pub mod numbers;
pub mod output;
pub mod passes;
pub mod plan;
pub mod plot;
pub mod record;
pub mod roofline;
pub mod stats;
pub mod subject;

use std::time::SystemTime;

use baton_graph::Executor;

use baton_engine::energy::Meter;
use baton_graph::Roof;
use machine::Machine;
use output::Printer;
use passes::Passes;
use plan::{Plan, Setting};
use record::Record;
use subject::{LoadTimes, Loaded, Subject};

/// Measures every test of `plan` on every one of its settings.
///
/// # Errors
/// If the model cannot be loaded or run, or the results cannot be printed.
pub fn run(
    subject: &Subject,
    plan: &Plan,
    printer: &mut Printer<'_, Record>,
) -> anyhow::Result<()> {
    let machine = Machine::look();
    let meter = Meter::find();
    let mut cold = plan.cold_load;
    for setting in &plan.settings {
        // Before the model is there, so that what is read counts to no peak.
        let roof = plan.roofline.then(|| roofline::measure(setting.threads)).transpose()?;
        machine::reset_peak_memory();
        // The files can be made cold once; after that they would only be read again for nothing.
        let loaded = subject.load(setting, plan.context(), std::mem::take(&mut cold))?;
        let Loaded { mut executor, unit, times } = loaded;
        for test in &plan.tests {
            let measured =
                Measured { subject, machine: &machine, unit, meter: &meter, setting, roof };
            let record = measured.test(plan, test, &mut *executor, &times)?;
            printer.row(&record)?;
        }
    }
    Ok(())
}

/// What a test is measured with.
struct Measured<'a> {
    subject: &'a Subject,
    machine: &'a Machine,
    unit: &'static str,
    meter: &'a Meter,
    setting: &'a Setting,
    roof: Option<Roof>,
}

impl Measured<'_> {
    fn test(
        &self,
        plan: &Plan,
        test: &plan::Test,
        executor: &mut dyn Executor,
        load: &LoadTimes,
    ) -> anyhow::Result<Record> {
        let began = SystemTime::now();
        let mut passes = Passes::new(executor, self.subject.vocab(), *test);
        if plan.warmup {
            passes.warm_up()?;
        }
        passes.fill_depth()?;
        let mut samples = Vec::new();
        let mut joules = self.meter.start();
        for _ in 0..plan.repetitions {
            std::thread::sleep(plan.delay);
            let sample = joules.during(|| passes.repeat())?;
            samples.push(sample);
        }
        Ok(Record::new(record::Facts {
            machine: self.machine,
            unit: self.unit,
            subject: self.subject.facts(),
            setting: self.setting,
            test,
            load,
            began,
            samples: &samples,
            energy: joules.total(),
            peak_memory: baton_engine::peak_memory(),
            work: self.subject.work(),
            roof: self.roof,
        }))
    }
}

//! All steps of a plan, ready to be encoded.

mod compile;
mod fold;
mod multiply;

use std::collections::HashMap;
use std::sync::Arc;

use baton_graph::{ExecError, Lookup, Timing};
use baton_weights::Tensor;

use crate::best::Finder;
use crate::clock::Clock;
use crate::kernels::Builder;
use crate::kv::Caches;
use crate::landing::Order;
use crate::launch::Launch;
use crate::matmul::Integers;
use crate::memory::Buffers;
use crate::plan::{self, Height, Plan, Step, Work};
use crate::step::{Room, Sizes};
use crate::{Activations, Gpu, GpuError, Matrix, Mixture, MixtureRoom, Part, Rows, View};
use multiply::Multiply;

/// Steps that are submitted ahead of the others, so that the device works while those are encoded.
const AHEAD: usize = 12;

/// The kernels of a step, with all that they need.
#[derive(Debug)]
enum Run {
    Launch(Launch),
    Product(Box<Multiply>),
    Embed(Rows),
    Mix(Box<Mix>),
}

/// A mixture of experts.
#[derive(Debug)]
struct Mix {
    mixture: Mixture,
    height: Height,
    accumulate: bool,
    /// Whether the step before stores integers, where [`Sizes::integers`] says so.
    stored: bool,
}

/// What more than one step may use.
#[derive(Debug, Default)]
struct Shared {
    /// Matrices, as a table of embeddings that is the last product as well; by name and place in
    /// memory, since files of one model may use a name twice.
    matrices: HashMap<(String, usize), Arc<Matrix>>,
    /// Memory of mixtures, and the rows that it is for.
    rooms: Vec<(Arc<MixtureRoom>, usize)>,
    /// Inputs of products so far.
    inputs: usize,
}

impl Shared {
    /// The input of a product or a mixture.
    fn activations(
        &mut self,
        gpu: &Gpu,
        buffers: &Buffers,
        x: &plan::View,
    ) -> Result<Arc<Activations>, GpuError> {
        self.inputs += 1;
        let memory = [&buffers.integers[self.inputs % 2], &buffers.halves].map(View::whole);
        let of = View::whole(buffers.of(x));
        Activations::with_integers_apart(gpu, of, x.cols, x.stride, memory).map(Arc::new)
    }

    fn matrix(&mut self, gpu: &Gpu, weights: &Tensor) -> Result<Arc<Matrix>, GpuError> {
        let key = (weights.name().to_owned(), weights.data().as_ptr() as usize);
        if let Some(known) = self.matrices.get(&key) {
            return Ok(Arc::clone(known));
        }
        let part = Part { weights: weights.clone(), bias: None };
        let matrix = Arc::new(Matrix::upload(gpu, &[part])?);
        self.matrices.insert(key, Arc::clone(&matrix));
        Ok(matrix)
    }

    fn room(
        &mut self,
        gpu: &Gpu,
        step: &plan::MoeStep,
        rows: usize,
    ) -> Result<Arc<MixtureRoom>, GpuError> {
        let hidden = step.x.cols;
        let fits = |(room, most): &&(Arc<MixtureRoom>, usize)| {
            *most >= rows && room.fits(&step.spec, hidden)
        };
        if let Some((room, _)) = self.rooms.iter().find(fits) {
            return Ok(Arc::clone(room));
        }
        let room = Arc::new(MixtureRoom::new(gpu, &step.spec, hidden, rows)?);
        self.rooms.push((Arc::clone(&room), rows));
        Ok(room)
    }
}

/// A pass of a plan.
#[derive(Debug)]
pub(crate) struct Program {
    gpu: Arc<Gpu>,
    /// The runs of each step and its label in the table of times.
    steps: Vec<(Vec<Run>, usize)>,
    labels: Vec<String>,
    timing: Timing,
    clock: Option<Clock>,
    /// The next passes of decoding, if they are these.
    ready: Option<(Order, wgpu::CommandBuffer)>,
    /// Bytes of what mixtures compute on their way.
    pub(crate) room_bytes: usize,
}

impl Program {
    /// Uploads the plan's weights and compiles its kernels. What finds best tokens comes last.
    ///
    /// # Errors
    /// If memory is short or the driver refuses a shader.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        plan: &Plan,
        buffers: &Buffers,
        caches: &Caches,
        room: &Room,
        finder: Option<&Finder>,
    ) -> Result<Program, ExecError> {
        let builder = Builder { gpu, buffers, caches, rotations: &plan.rotations, tile: room.tile };
        let mut steps = Vec::with_capacity(plan.steps.len());
        // What comes before a product may store the form of its input that the product reads.
        let mut next = None;
        let mut shared = Shared::default();
        for (at, step) in plan.steps.iter().enumerate().rev() {
            let before = at.checked_sub(1).map(|at| &plan.steps[at].work);
            let runs = runs(&builder, step, before, next.clone(), &mut shared, room)?;
            next = match (&step.work, runs.first()) {
                // What stands before it takes its place where it is left out.
                (work, _) if work.picks() => next,
                (Work::Product(product), Some(Run::Product(multiply))) => {
                    multiply.integers().map(|integers| (product.x, integers))
                }
                (Work::Moe(moe), Some(Run::Mix(mix))) => {
                    mix.integers().map(|integers| (moe.x, integers))
                }
                _ => None,
            };
            steps.push((runs, step.label));
        }
        steps.reverse();
        fold::connect(gpu, plan, &mut steps)?;
        let mut labels = plan.labels.clone();
        if let Some(finder) = finder {
            let launches = finder.launches(gpu, plan, buffers)?;
            steps.push((launches.map(Run::Launch).into(), labels.len()));
            labels.push("best tokens".to_owned());
        }
        let timing = Timing::from_env(&labels);
        let clock = timing.is_on().then(|| Clock::new(gpu, steps.len())).transpose()?;
        let room_bytes = shared.rooms.iter().map(|(room, _)| room.bytes()).sum();
        Ok(Program { room_bytes, gpu: Arc::clone(gpu), steps, labels, timing, clock, ready: None })
    }

    /// Whether every pass is waited for, to measure it.
    pub(crate) fn is_timed(&self) -> bool {
        self.clock.is_some()
    }

    /// Submits passes, with what `finish` puts behind them, which may depend on the order alone.
    ///
    /// # Errors
    /// If a kernel cannot be compiled, or with a clock the device is lost.
    pub(crate) fn submit(
        &mut self,
        order: &Order,
        finish: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<wgpu::SubmissionIndex, GpuError> {
        if self.is_timed() {
            return self.submit_timed(&order.sizes, finish);
        }
        let gpu = Arc::clone(&self.gpu);
        if let Some((_, commands)) = self.ready.take_if(|(ready, _)| ready == order) {
            return Ok(gpu.queue().submit([commands]));
        }
        if order.passes > 1 {
            return Ok(gpu.queue().submit([self.commands(order, finish)?]));
        }
        let ahead = AHEAD.min(self.steps.len());
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        self.encode(&mut encoder, 0..ahead, &order.sizes, 1)?;
        gpu.queue().submit([encoder.finish()]);
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        self.encode(&mut encoder, ahead..self.steps.len(), &order.sizes, 1)?;
        finish(&mut encoder);
        Ok(gpu.queue().submit([encoder.finish()]))
    }

    /// While the device works on a pass of decoding, encodes the next ones, which are likely to have the
    /// same sizes: what differs lies in tables. `finish` is what [`submit`](Program::submit) will get.
    ///
    /// # Errors
    /// If a kernel cannot be compiled.
    pub(crate) fn prepare(
        &mut self,
        order: &Order,
        finish: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<(), GpuError> {
        if !self.is_timed() && order.sizes.tiles == 0 {
            self.ready = Some((*order, self.commands(order, finish)?));
        }
        Ok(())
    }

    /// The commands of passes.
    fn commands(
        &mut self,
        order: &Order,
        finish: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<wgpu::CommandBuffer, GpuError> {
        let mut encoder = self.gpu.device().create_command_encoder(&Default::default());
        self.encode(&mut encoder, 0..self.steps.len(), &order.sizes, order.passes)?;
        finish(&mut encoder);
        Ok(encoder.finish())
    }

    /// Encodes steps of so many passes.
    fn encode(
        &mut self,
        encoder: &mut wgpu::CommandEncoder,
        steps: std::ops::Range<usize>,
        sizes: &Sizes,
        passes: usize,
    ) -> Result<(), GpuError> {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for turn in 0..passes as u32 {
            let sizes = Sizes { turn, ..*sizes };
            for run in self.steps[steps.clone()].iter_mut().flat_map(|(runs, _)| runs) {
                run.encode(&mut pass, &sizes)?;
            }
        }
        Ok(())
    }

    fn submit_timed(
        &mut self,
        sizes: &Sizes,
        finish: impl FnOnce(&mut wgpu::CommandEncoder),
    ) -> Result<wgpu::SubmissionIndex, GpuError> {
        let gpu = Arc::clone(&self.gpu);
        let Some(clock) = self.clock.take() else { unreachable!("only timed passes come here") };
        let mut encoder = gpu.device().create_command_encoder(&Default::default());
        clock.note(&mut encoder, 0);
        for at in 0..self.steps.len() {
            self.encode(&mut encoder, at..at + 1, sizes, 1)?;
            clock.note(&mut encoder, at + 1);
        }
        clock.resolve(&mut encoder);
        finish(&mut encoder);
        let done = gpu.queue().submit([encoder.finish()]);
        let is_decode = sizes.tiles == 0;
        for (time, (_, label)) in clock.read(&gpu)?.into_iter().zip(&self.steps) {
            self.timing.add(*label, is_decode, time);
        }
        self.timing.pass(is_decode, sizes.tokens as usize);
        self.clock = Some(clock);
        Ok(done)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.timing.print(&self.labels);
    }
}

impl Run {
    fn encode(&mut self, pass: &mut wgpu::ComputePass<'_>, sizes: &Sizes) -> Result<(), GpuError> {
        match self {
            Run::Launch(launch) => launch.encode(pass, sizes),
            Run::Product(multiply) => multiply.encode(pass, sizes)?,
            Run::Embed(rows) => rows.encode(pass, sizes.tokens as usize),
            Run::Mix(mix) => {
                let rows = sizes.rows(mix.height) as usize;
                if rows > 0 {
                    let stored = mix.stored && sizes.integers(mix.height);
                    mix.mixture.encode(pass, rows, mix.accumulate, stored)?;
                }
            }
        }
        Ok(())
    }
}

impl Mix {
    /// Where it reads integers of few rows, if it does.
    fn integers(&self) -> Option<Integers> {
        self.mixture.reads_integers().then(|| self.mixture.input().integers())
    }
}

/// The kernels of a step. `next` is what the product that follows reads as integers, and where.
fn runs(
    builder: &Builder<'_>,
    step: &Step,
    before: Option<&Work>,
    next: Option<(plan::View, Integers)>,
    shared: &mut Shared,
    room: &Room,
) -> Result<Vec<Run>, GpuError> {
    let Step { work, height, .. } = step;
    let one = |launch| Ok(vec![Run::Launch(launch)]);
    let integers = next.filter(|(x, _)| work.may_store(x)).map(|(_, integers)| integers);
    let integers = integers.as_ref();
    match work {
        Work::Norm(step) => one(builder.norm(step, *height, integers)?),
        Work::Point(step) => one(builder.point(step, *height, integers)?),
        Work::Heads(step) => one(builder.heads(step, *height)?),
        Work::Attention(step) => {
            let Some(Work::Heads(heads)) = before else {
                unreachable!("lowering puts what prepares heads before their attention")
            };
            Ok(builder.attention(step, heads, integers)?.map(Run::Launch).into())
        }
        Work::Pool { how, x, out } => one(builder.pool(*how, x, out)?),
        Work::Embed { table, lookup, scale, out } => {
            let ids = match *lookup {
                Lookup::Token => builder.buffers.tokens.clone(),
                Lookup::Position => builder.buffers.positions.clone(),
                Lookup::Row(row) => {
                    builder.gpu.buffer_of("numbers of a row", &vec![row as u32; room.rows])?
                }
            };
            let (ids, y) = (View::whole(&ids), View::whole(builder.buffers.of(out)));
            let table = shared.matrix(builder.gpu, table)?;
            let rows = Rows::new(builder.gpu, &table, &ids, &y, out.stride, *scale)?;
            Ok(vec![Run::Embed(rows)])
        }
        Work::Product(step) => {
            let multiply = Multiply::new(builder.gpu, builder.buffers, step, *height, shared)?;
            Ok(vec![Run::Product(Box::new(multiply))])
        }
        Work::Moe(step) => {
            let (gpu, buffers) = (builder.gpu, builder.buffers);
            let mixtures = shared.room(gpu, step, room.rows(*height))?;
            let x = shared.activations(gpu, buffers, &step.x)?;
            let y = View::whole(buffers.of(&step.out));
            let y = (&y, step.out.stride);
            let mixture = Mixture::new(gpu, &step.spec, &step.weights, &mixtures, &x, y)?;
            Ok(vec![Run::Mix(Box::new(Mix {
                mixture,
                height: *height,
                accumulate: step.accumulate,
                stored: false,
            }))])
        }
    }
}

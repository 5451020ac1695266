//! A kernel with all that it needs but its number of rows, bound once and run in every pass.

use std::sync::Arc;

use crate::matmul::{Integers, unroll};
use crate::plan::Height;
use crate::step::Sizes;
use crate::{Access, Constant, Gpu, GpuError, Kernel, Shader};

/// A shader of this crate that reads the tables of `shaders/step.wgsl` in its first binding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) name: &'static str,
    /// Files after `step.wgsl`.
    pub(crate) files: &'static [&'static str],
    /// Bindings read and then bindings written, behind the tables.
    pub(crate) reads: usize,
    pub(crate) writes: usize,
    /// Whether it writes to the tables.
    pub(crate) goes_on: bool,
    /// Extensions that it enables.
    pub(crate) enables: &'static [&'static str],
}

impl Source {
    /// The WGSL, with blocks repeated as constants say and these parameters, in the order of the shader's
    /// `Params`. They are constants too: single tokens wait for instructions more than for anything
    /// else, so that there should be none but those that this launch needs.
    pub(crate) fn text(&self, constants: &[(&str, Constant)], params: &[Constant]) -> String {
        let mut tables = STEP.to_owned();
        if self.goes_on {
            tables = tables.replace("var<storage, read>", "var<storage, read_write>");
        }
        let files: String = [&*tables].into_iter().chain(self.files.iter().copied()).collect();
        let params: Vec<String> = params.iter().map(|param| param.literal()).collect();
        unroll(&files, constants) + &format!("const params = Params({});\n", params.join(", "))
    }

    fn bindings(&self) -> Vec<Access> {
        let mut bindings = vec![Access::Read; 1 + self.reads];
        bindings.resize(1 + self.reads + self.writes, Access::Write);
        if self.goes_on {
            bindings[0] = Access::Write;
        }
        bindings
    }
}

const STEP: &str = include_str!("shaders/step.wgsl");

/// The workgroups of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// So many for each row.
    Rows(u32, Height),
    /// So many for each row of logits, where not all rows are such.
    Picked(u32),
    /// For each part of the past, this number for each lone token, in passes that have others than single
    /// tokens.
    Parts(u32),
    /// The same in passes of single tokens: where there are few workgroups of several query heads each, or
    /// where there are many.
    Single(Single),
    /// So many for each token, but in passes of single tokens.
    NotSingle(u32),
    /// So many for each lone token whose past has several parts.
    Joined(u32),
    /// So many for each tile of queries.
    Tiles(u32),
    /// So many for each row of logits, where best tokens are to be found.
    Best(u32),
    /// The same where the best one is enough, or where it is not.
    Join(u32, bool),
}

/// The workgroups of attention to single tokens, for each part of their past and each of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Single {
    pub(crate) workgroups: u32,
    /// How many there are where each has several query heads.
    pub(crate) wide: u32,
    /// Whether it has several here.
    pub(crate) is_wide: bool,
}

impl Single {
    /// So many workgroups, or fewer, leave much of a device idle.
    const FEW: u32 = 96;

    fn is_for(&self, sizes: &Sizes) -> bool {
        let all = u64::from(self.wide) * u64::from(sizes.parts) * u64::from(sizes.lone);
        sizes.single && self.is_wide == (all > u64::from(Single::FEW))
    }
}

impl Grid {
    /// The numbers in each direction; none if there is nothing to do.
    fn of(self, sizes: &Sizes) -> Option<[u32; 3]> {
        let grid = match self {
            Grid::Rows(x, height) => [x, sizes.rows(height), 1],
            Grid::Picked(_) if sizes.wanted == sizes.tokens => return None,
            Grid::Picked(x) => [x, sizes.wanted, 1],
            Grid::Parts(_) if sizes.single => return None,
            Grid::Single(own) if !own.is_for(sizes) => return None,
            Grid::NotSingle(_) if sizes.single => return None,
            Grid::Joined(_) if sizes.parts == 1 => return None,
            Grid::Best(_) | Grid::Join(..) if !sizes.best => return None,
            Grid::Join(_, one) if one != sizes.one => return None,
            Grid::Parts(y) | Grid::Single(Single { workgroups: y, .. }) => {
                [sizes.parts, y, sizes.lone]
            }
            Grid::NotSingle(x) => [x, sizes.tokens, 1],
            Grid::Joined(x) => [x, sizes.lone, 1],
            Grid::Tiles(y) => [sizes.tiles, y, 1],
            Grid::Best(x) | Grid::Join(x, _) => [x, sizes.wanted, 1],
        };
        (!grid.contains(&0)).then_some(grid)
    }
}

/// What a kernel is given in each pass: the one parameter that is not a constant.
#[derive(Clone, Copy, Debug)]
enum Given {
    /// Nothing, which is not looked at.
    Nothing,
    /// Words of a row of integers that it stores for a product that comes next, where
    /// [`Sizes::integers`] says so of this height, or 0.
    Integers(Height, u32),
    /// The first row of what passes that are submitted together leave.
    FirstRow,
}

impl Given {
    fn of(self, sizes: &Sizes) -> u32 {
        match self {
            Given::Integers(height, words) if sizes.integers(height) => words,
            Given::FirstRow => sizes.turn * sizes.wanted,
            _ => 0,
        }
    }
}

/// A kernel with buffers and parameters.
#[derive(Debug)]
pub(crate) struct Launch {
    kernel: Arc<Kernel>,
    group: wgpu::BindGroup,
    given: Given,
    grid: Grid,
    /// Rows of a height for which the product before does its work, where [`Sizes::integers`] says so.
    folded: Option<Height>,
}

impl Launch {
    /// Binds `buffers`, the tables first.
    ///
    /// # Errors
    /// If the driver refuses the shader.
    pub(crate) fn new(
        gpu: &Gpu,
        source: &Source,
        constants: &[(&str, Constant)],
        buffers: &[&wgpu::Buffer],
        params: &[Constant],
        grid: Grid,
    ) -> Result<Launch, GpuError> {
        let bindings = source.bindings();
        let shader = Shader {
            name: source.name,
            source: source.text(constants, params).into(),
            enables: source.enables,
            constants,
            bindings: &bindings,
            immediates: size_of::<u32>() as u32,
            // The tables are made by `step.rs` from a batch that was checked, and every index comes
            // from them and from the shapes that the buffers were made for.
            unchecked: true,
        };
        let kernel = gpu.kernel(&shader)?;
        let bound: Vec<_> = buffers.iter().map(|b| b.as_entire_buffer_binding()).collect();
        let group = gpu.guard(source.name, || kernel.bind(gpu, &bound))?;
        Ok(Launch { kernel, group, given: Given::Nothing, grid, folded: None })
    }

    /// Makes it store integers of rows of a height.
    pub(crate) fn storing(self, height: Height, integers: Option<&Integers>) -> Launch {
        let given = |integers: &Integers| Given::Integers(height, integers.words);
        Launch { given: integers.map_or(Given::Nothing, given), ..self }
    }

    /// Puts what it leaves of each pass behind that of those before which are submitted with it.
    pub(crate) fn in_turn(self) -> Launch {
        Launch { given: Given::FirstRow, ..self }
    }

    /// Leaves it out where the product before stores integers of rows of a height.
    pub(crate) fn fold(&mut self, height: Height) {
        self.folded = Some(height);
    }

    /// Encodes it for a pass of these sizes.
    pub(crate) fn encode(&self, pass: &mut wgpu::ComputePass<'_>, sizes: &Sizes) {
        if self.folded.is_some_and(|height| sizes.integers(height)) {
            return;
        }
        if let Some(grid) = self.grid.of(sizes) {
            let given = self.given.of(sizes);
            self.kernel.dispatch(pass, &self.group, bytemuck::bytes_of(&given), grid);
        }
    }
}

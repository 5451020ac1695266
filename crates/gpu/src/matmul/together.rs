//! The matrices of a linear operation that have several forms, such as queries and keys of 4 bits beside values
//! of 6, in one launch where tokens are few: each launch that waits for the one before costs some
//! microseconds.
//!
//! The code of each product has its number behind every name, and parameters are
//! constants.

use std::fmt::Write;
use std::sync::Arc;

use super::activations::{Activations, Reading, View, bind};
use super::form::Form;
use super::kernels;
use super::matrix::{Matrix, Segment};
use super::product::{is_even, parameters, vector};
use super::text::{numbered, unroll};
use super::variant::{Finish, Parameters, Vector, constant};
use crate::{Access, Gpu, GpuError, Kernel, Shader};

macro_rules! shader {
    ($name:literal) => {
        include_str!(concat!("../shaders/", $name, ".wgsl"))
    };
}

/// Products of all segments of a matrix with up to a number of tokens.
#[derive(Debug)]
pub(super) struct Together {
    kernel: Arc<Kernel>,
    group: wgpu::BindGroup,
    workgroups: u32,
}

/// What a product is besides its matrix.
pub(super) struct Around<'a> {
    pub(super) x: &'a Activations,
    pub(super) y: &'a View,
    pub(super) y_stride: usize,
    pub(super) add: bool,
    /// What is added to the mean square that its activations are still to be divided by the root of.
    pub(super) norm: Option<f32>,
}

impl Around<'_> {
    /// The parameters of a product with a segment, but for the number of tokens, that reads its activations in
    /// a form.
    pub(super) fn parameters(&self, segment: &Segment, reading: Reading) -> Parameters {
        let (_, x_stride) = self.x.read(reading);
        let mut p = parameters(segment);
        (p[3], p[5]) = (x_stride as u32, self.y_stride as u32);
        (p[6], p[11]) = (u32::from(self.add), self.x.inputs as u32);
        if let Some(eps) = self.norm {
            (p[16], p[17]) = (1, eps.to_bits());
        }
        p
    }
}

/// A segment's part of the launch.
struct Part<'a> {
    segment: &'a Segment,
    vector: Vector,
    even: bool,
    parameters: Parameters,
    workgroups: u32,
}

impl Together {
    /// Whether a matrix is one for it: the device has subgroups, and there are several forms, all of which
    /// multiply integers.
    pub(super) fn fits(gpu: &Gpu, matrix: &Matrix) -> bool {
        let integers = |segment: &Segment| !segment.planes.form.is_float();
        gpu.features().subgroups.is_some()
            && (2..=3).contains(&matrix.segments.len())
            && matrix.segments.iter().all(integers)
    }

    /// For up to `columns` tokens.
    ///
    /// # Errors
    /// If the driver refuses the shader.
    pub(super) fn new(
        gpu: &Gpu,
        matrix: &Matrix,
        around: &Around<'_>,
        columns: u32,
    ) -> Result<Together, GpuError> {
        let parts = parts(gpu, matrix, around, columns);
        let (x, _) = around.x.read(Reading::Integers);
        let mut views = vec![View::whole(&parts[0].segment.buffer), x.clone(), around.y.clone()];
        views.extend(parts[1..].iter().map(|part| View::whole(&part.segment.buffer)));
        let mut bindings = vec![Access::Read; views.len()];
        bindings[2] = Access::Write;
        let size = parts[0].vector.size;
        let kernel = gpu.kernel(&Shader {
            name: "products side by side",
            source: source(gpu, &parts).into(),
            constants: &[("SIZE", size.into()), ("COLUMNS", columns.into())],
            bindings: &bindings,
            immediates: size_of::<u32>() as u32,
            // As for single matrices.
            unchecked: true,
            ..Default::default()
        })?;
        let group = bind(gpu, &kernel, &views.iter().collect::<Vec<_>>())?;
        let workgroups = parts.iter().map(|part| part.workgroups).sum();
        Ok(Together { kernel, group, workgroups })
    }

    pub(super) fn encode(&self, pass: &mut wgpu::ComputePass<'_>, tokens: usize) {
        let grid = super::grid(self.workgroups, 1);
        self.kernel.dispatch(pass, &self.group, bytemuck::bytes_of(&(tokens as u32)), grid);
    }
}

fn parts<'a>(gpu: &Gpu, matrix: &'a Matrix, around: &Around<'_>, columns: u32) -> Vec<Part<'a>> {
    let divide = |segment| vector(gpu, None, matrix.outputs(), segment, columns);
    let size = matrix.segments.iter().map(|segment| divide(segment).size).max().unwrap_or(0);
    let part = |segment: &'a Segment| {
        let vector = Vector { size, ..divide(segment) };
        let parameters = around.parameters(segment, Reading::Integers);
        let workgroups = (segment.planes.rows as u32).div_ceil(vector.outputs());
        Part { segment, vector, even: is_even(segment, around.x), parameters, workgroups }
    };
    matrix.segments.iter().map(part).collect()
}

fn source(gpu: &Gpu, parts: &[Part<'_>]) -> String {
    let mut text = [
        shader!("matmul_params"),
        shader!("matvec_place"),
        shader!("matvec_integers"),
        shader!("matvec_results"),
        "var<immediate> tokens: u32;\n",
    ]
    .join("\n");
    for (number, part) in parts.iter().enumerate() {
        let binding = if number == 0 { 0 } else { number + 2 };
        // Writing into a string cannot fail.
        let _ = writeln!(
            text,
            "@group(0) @binding({binding}) var<storage, read> w_{number}: array<vec4<u32>>;"
        );
        text.push_str(&part.text(gpu, number));
    }
    text + &division(parts) + shader!("matvec_main")
}

impl Part<'_> {
    /// Its code, in which names have its number.
    fn text(&self, gpu: &Gpu, number: usize) -> String {
        let form: Form = self.segment.planes.form;
        let subgroups = gpu.features().subgroups;
        let constants =
            kernels::constants_of_few(form, &self.vector, Finish::Store, self.even, subgroups);
        let mut sources = vec![shader!("matmul_matrix")];
        sources.extend(kernels::of_few(form, Finish::Store, true));
        let text = unroll(&sources.join("\n"), &constants);
        let own = constants.iter().filter(|(name, _)| !["SIZE", "COLUMNS"].contains(name));
        let names: Vec<&str> = own.clone().map(|(name, _)| *name).chain(["p"]).collect();
        let mut text = numbered(&text, &names, number);
        for (name, value) in own {
            text.push_str(&value.declaration(&format!("{name}_{number}")));
        }
        text + &constant(&format!("p_{number}"), &self.parameters)
    }
}

/// What `shaders/matvec_main.wgsl` calls: workgroups belong to the parts one after the other.
fn division(parts: &[Part<'_>]) -> String {
    let mut text = "
fn place(z: u32) -> Place {
    return Place(0u, 0u, 0u, tokens, true);
}

fn multiply(own: u32, at: Place, subgroup: u32, subgroup_size: u32, invocation: u32) {
"
    .to_owned();
    let mut first = 0;
    for (number, part) in parts.iter().enumerate() {
        let end = first + part.workgroups;
        let start = if number == 0 { "    " } else { " else " };
        // The last one has what is left of a grid of two dimensions, too, whose outputs do not exist.
        let condition = match number + 1 == parts.len() {
            true => String::new(),
            false => format!("if (own < {end}u) "),
        };
        let _ = write!(
            text,
            "{start}{condition}{{
        multiply_{number}(own - {first}u, at, subgroup, subgroup_size, invocation);
    }}"
        );
        first = end;
    }
    text + "\n}\n"
}

//! Compute pipelines made of WGSL, kept so that each is compiled once.

use std::borrow::Cow;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

use crate::device::lock;
use crate::{Gpu, GpuError};

/// A shader: WGSL with constants put before it.
///
/// All bindings lie in group 0, numbered from 0. Parameters that change from call to call are
/// immediates (`var<immediate>`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shader<'a> {
    /// What it is called in errors.
    pub name: &'a str,
    /// WGSL with one entry point, `main`; often several files one after another.
    pub source: Cow<'a, str>,
    /// Extensions that the shader enables, such as `f16`.
    pub enables: &'a [&'a str],
    /// Constants that the source reads.
    pub constants: &'a [(&'a str, Constant)],
    /// Whether each binding is written to.
    pub bindings: &'a [Access],
    /// Bytes of immediates.
    pub immediates: u32,
    /// Leaves out the check of each index. Only for shaders whose indices are shown to be within
    /// bounds whatever the data.
    pub unchecked: bool,
}

/// The value of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Constant {
    /// A `u32`.
    Uint(u32),
    /// An `i32`.
    Int(i32),
    /// An `f32`, by its bits, so that it can be compared.
    Float(u32),
    /// A `bool`.
    Bool(bool),
}

impl Constant {
    /// The line of WGSL that declares it.
    pub(crate) fn declaration(self, name: &str) -> String {
        format!("const {name} = {};\n", self.literal())
    }

    /// As WGSL has it.
    pub(crate) fn literal(self) -> String {
        match self {
            Constant::Uint(v) => format!("{v}u"),
            Constant::Int(v) => format!("{v}i"),
            // WGSL has no infinities. A limit that is none of its numbers is no limit.
            Constant::Float(v) => format!("{:?}f", f32::from_bits(v).clamp(f32::MIN, f32::MAX)),
            Constant::Bool(v) => format!("{v}"),
        }
    }
}

impl From<u32> for Constant {
    fn from(value: u32) -> Self {
        Constant::Uint(value)
    }
}

impl From<i32> for Constant {
    fn from(value: i32) -> Self {
        Constant::Int(value)
    }
}

impl From<f32> for Constant {
    fn from(value: f32) -> Self {
        Constant::Float(value.to_bits())
    }
}

impl From<bool> for Constant {
    fn from(value: bool) -> Self {
        Constant::Bool(value)
    }
}

/// What a shader does with a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// `var<storage, read>`.
    Read,
    /// `var<storage, read_write>`.
    Write,
    /// `var<uniform>`.
    Uniform,
}

/// A compiled shader.
#[derive(Debug)]
pub struct Kernel {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// Where a kernel is kept once it is compiled.
pub(crate) type KernelPlace = Arc<Mutex<Option<Arc<Kernel>>>>;

/// What makes one kernel differ from another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KernelKey {
    text: String,
    bindings: Vec<Access>,
    immediates: u32,
    unchecked: bool,
}

impl Shader<'_> {
    /// All of the WGSL.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for extension in self.enables {
            // Writing into a string cannot fail.
            let _ = writeln!(text, "enable {extension};");
        }
        for (name, value) in self.constants {
            text.push_str(&value.declaration(name));
        }
        text + &self.source
    }
}

impl Gpu {
    /// The kernel of a shader, compiled at its first use.
    ///
    /// # Errors
    /// If the driver or the check of the source refuses it.
    pub fn kernel(&self, shader: &Shader<'_>) -> Result<Arc<Kernel>, GpuError> {
        let key = KernelKey {
            text: shader.text(),
            bindings: shader.bindings.to_vec(),
            immediates: shader.immediates,
            unchecked: shader.unchecked,
        };
        let place = self.place_of(&key);
        // Whoever wants the same one meanwhile waits here; others are compiled at the same time.
        let mut place = lock(&place);
        if let Some(kernel) = &*place {
            return Ok(Arc::clone(kernel));
        }
        let what = format!("the shader {:?}", shader.name);
        let compiled = self.guard(&what, || self.compile(shader.name, &key));
        if compiled.is_err() {
            lock(&self.kernels).remove(&key);
        }
        let kernel = Arc::new(compiled?);
        *place = Some(Arc::clone(&kernel));
        Ok(kernel)
    }

    fn place_of(&self, key: &KernelKey) -> KernelPlace {
        let mut kernels = lock(&self.kernels);
        if let Some(place) = kernels.get(key) {
            return Arc::clone(place);
        }
        Arc::clone(kernels.entry(key.clone()).or_default())
    }

    #[allow(unsafe_code)]
    fn compile(&self, name: &str, key: &KernelKey) -> Kernel {
        let device = self.device();
        let checks = wgpu::ShaderRuntimeChecks {
            bounds_checks: !key.unchecked,
            force_loop_bounding: false,
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        let source = wgpu::ShaderSource::Wgsl(key.text.as_str().into());
        let described = wgpu::ShaderModuleDescriptor { label: Some(name), source };
        // SAFETY: shaders are part of this crate and their loops count up to a bound, so none needs
        // a counter that stops it; indices go unchecked only where the shader's host code shows
        // that they are in bounds.
        let module = unsafe { device.create_shader_module_trusted(described, checks) };
        let entries: Vec<_> = key.bindings.iter().zip(0..).map(|(b, i)| entry(i, *b)).collect();
        let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some(name),
            entries: &entries,
        });
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(name),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: key.immediates,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(name),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            // Kernels write what they read of workgroup memory.
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: None,
        });
        Kernel { pipeline, layout }
    }
}

impl Kernel {
    /// Binds buffers, or parts of them, in the order of the shader's bindings.
    ///
    /// One buffer may not be both read and written by one kernel, not even in different parts.
    pub fn bind(&self, gpu: &Gpu, buffers: &[wgpu::BufferBinding<'_>]) -> wgpu::BindGroup {
        let entries: Vec<_> = buffers
            .iter()
            .zip(0..)
            .map(|(buffer, binding)| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(buffer.clone()),
            })
            .collect();
        gpu.device().create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &self.layout,
            entries: &entries,
        })
    }

    /// Encodes one run over a grid of workgroups, with the immediates' bytes.
    pub fn dispatch(
        &self,
        pass: &mut wgpu::ComputePass<'_>,
        group: &wgpu::BindGroup,
        immediates: &[u8],
        grid: [u32; 3],
    ) {
        pass.set_pipeline(&self.pipeline);
        pass.set_bind_group(0, group, &[]);
        if !immediates.is_empty() {
            pass.set_immediates(0, immediates);
        }
        let [x, y, z] = grid;
        pass.dispatch_workgroups(x, y, z);
    }
}

fn entry(binding: u32, access: Access) -> wgpu::BindGroupLayoutEntry {
    let ty = match access {
        Access::Read => wgpu::BufferBindingType::Storage { read_only: true },
        Access::Write => wgpu::BufferBindingType::Storage { read_only: false },
        Access::Uniform => wgpu::BufferBindingType::Uniform,
    };
    wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    }
}

#[cfg(test)]
mod tests;
